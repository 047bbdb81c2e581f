"""Runs the samples of many groups at once, and retries the ones that a fault ended."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrl.config import RolloutConfig
from agentrl.errors import FaultShareError
from agentrl.place import at
from agentrl.rollout.grading import NO_BOX
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.types import Group, Sample, StopReason

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
        """Fill each group with the final attempt of each sample; `on_sample` hears of every attempt.

        What a group holds already is kept: of a group that is given out again only the rest is played. Raises
        FaultShareError as soon as too many samples have ended in a fault; the others are cancelled and stored so.
        """
        gauge = FaultGauge(self.config.max_fault_share, sum(group.size for group in groups))
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(self._run_group(group, on_sample, gauge))
        return list(groups)

    async def _run_group(self, group: Group, on_sample: OnSample, gauge: FaultGauge) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._run_sample(group, n, on_sample, gauge)) for n in range(group.size)]
        group.samples = [task.result() for task in running]

    async def _run_sample(self, group: Group, number: int, on_sample: OnSample, gauge: FaultGauge) -> Sample:
        spec = RolloutSpec(
            run=group.run,
            task=group.task,
            group=group.id,
            ordinal=group.ordinal,
            lease_generation=group.lease_generation,
            sample=number,
            reissue=group.reissue,
            run_seed=self.run_seed,
        )
        sample = await self._kept(group, number)
        first = self._next_attempt(sample)
        for attempt in range(first, self.config.max_attempts):
            with at(task=group.task.id, sample=number, attempt=attempt):
                async with self._slots:
                    sample = await self.loop.run(replace(spec, attempt=attempt))
                _log(sample)
            on_sample(sample)
            reason = sample.trajectory.stop_reason
            if reason is None or not reason.ending.retried:
                break
        assert sample is not None
        gauge.add(sample)
        return sample

    async def _kept(self, group: Group, number: int) -> Sample | None:
        """What there is of a sample; graded now if only that was missing."""
        kept = next((sample for sample in group.samples if sample.trajectory.sample == number), None)
        if kept is None or kept.grade is not None or _is_cut_off(kept.trajectory.stop_reason):
            return kept
        return await self.loop.grade(kept.trajectory, group.lease_generation)

    def _next_attempt(self, kept: Sample | None) -> int:
        """The attempt that is due; max_attempts: none. What was cut off is played again with the same seeds."""
        if kept is None:
            return 0
        attempt, reason = kept.trajectory.attempt, kept.trajectory.stop_reason
        if reason is None or _is_cut_off(reason):
            return attempt
        return attempt + 1 if reason.ending.retried else self.config.max_attempts


class FaultGauge:
    """Stops the run, with a name, once more than a share of its samples ended in a fault or had no box to be graded in.

    The share is of all samples, not of those that have ended: faults end faster than what goes well.
    """

    def __init__(self, max_share: float, num_samples: int) -> None:
        self.max_share = max_share
        self.num_samples = num_samples
        self.faults: Counter[str] = Counter()

    def add(self, sample: Sample) -> None:
        """Count a sample's final attempt. Raises FaultShareError."""
        fault = _fault(sample)
        if fault is None:
            return
        name, text = fault
        self.faults[name] += 1
        if self.faults.total() <= self.max_share * self.num_samples:
            return
        counts = ", ".join(f"{reason} {num}" for reason, num in self.faults.items())
        raise FaultShareError(
            f"{self.faults.total()} of {self.num_samples} rollouts ended in a fault ({counts}), more than "
            f"rollout.max_fault_share={self.max_share:g} allows. The last one, trajectory {sample.trajectory.id}: "
            f"{_first_line(text)}"
        )


def _fault(sample: Sample) -> tuple[str, str | None] | None:
    """(what to count it as, its text); None: a sample that was measured, or whose own environment kept it from that."""
    reason, grade = sample.trajectory.stop_reason, sample.grade
    assert reason is not None
    if reason.ending.retried:
        return reason, sample.trajectory.error
    if grade is not None and (grade.unmeasured or "").startswith(NO_BOX):
        return NO_BOX, grade.unmeasured
    return None


def _is_cut_off(reason: StopReason | None) -> bool:
    """By a crash or a stop: nothing was measured, and it was no fault that would use up a try."""
    return reason is None or not (reason.ending.graded or reason.ending.retried)


def _first_line(text: str | None) -> str:
    return (text or "no error was recorded").partition("\n")[0]


def _log(sample: Sample) -> None:
    """What went wrong around the agent, as a warning; what is data, for who looks close."""
    trajectory, grade = sample.trajectory, sample.grade
    reason = trajectory.stop_reason
    is_fault = reason is None or not reason.ending.graded
    LOGGER.log(logging.WARNING if is_fault else logging.DEBUG, "ended as %s: %s", reason, trajectory.error)
    if grade is not None and grade.reward is None:
        LOGGER.warning("no reward could be measured: %s", grade.unmeasured)
