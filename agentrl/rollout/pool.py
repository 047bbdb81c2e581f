"""Runs the samples of many groups at once, and retries the ones that a fault ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrl.config import RolloutConfig
from agentrl.place import at
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.types import Group, Sample

OnSample = Callable[[Sample], None]


LOGGER = logging.getLogger(__name__)


class RolloutPool:
    """At most `config.concurrency` rollouts in flight."""

    def __init__(self, loop: AgentLoop, config: RolloutConfig, run_seed: int) -> None:
        self.loop = loop
        self.config = config
        self.run_seed = run_seed
        self._slots = asyncio.Semaphore(config.concurrency)

    async def run(self, groups: Sequence[Group], on_sample: OnSample = lambda sample: None) -> list[Group]:
        """Fill each group with the final attempt of each sample; `on_sample` hears of every attempt."""
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(self._run_group(group, on_sample))
        return list(groups)

    async def _run_group(self, group: Group, on_sample: OnSample) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._run_sample(group, n, on_sample)) for n in range(group.size)]
        group.samples = [task.result() for task in running]

    async def _run_sample(self, group: Group, number: int, on_sample: OnSample) -> Sample:
        spec = RolloutSpec(
            run=group.run,
            task=group.task,
            group=group.id,
            ordinal=group.ordinal,
            lease_generation=group.lease_generation,
            sample=number,
            run_seed=self.run_seed,
        )
        for attempt in range(self.config.max_attempts):
            with at(task=group.task.id, sample=number, attempt=attempt):
                async with self._slots:
                    sample = await self.loop.run(replace(spec, attempt=attempt))
                _log(sample)
            on_sample(sample)
            reason = sample.trajectory.stop_reason
            if reason is None or not reason.ending.retried:
                break
        return sample


def _log(sample: Sample) -> None:
    """What went wrong around the agent, as a warning; what is data, for who looks close."""
    trajectory, grade = sample.trajectory, sample.grade
    reason = trajectory.stop_reason
    is_fault = reason is None or not reason.ending.graded
    LOGGER.log(logging.WARNING if is_fault else logging.DEBUG, "ended as %s: %s", reason, trajectory.error)
    if grade is not None and grade.reward is None:
        LOGGER.warning("no reward could be measured: %s", grade.unmeasured)
