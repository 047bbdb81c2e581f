"""Calls an environment's methods. What they raise or return wrongly ends this rollout as env_error, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

from agentrl.environment import Environment, EnvironmentContext, StepResult
from agentrl.errors import RolloutFault, StoreError
from agentrl.rollout.faults import describe
from agentrl.rollout.threads import Threads, contained
from agentrl.sandbox import SandboxSpec
from agentrl.tool import ToolResult
from agentrl.types import Artifacts, Message, StopReason, Task


class Hooks:
    """The methods of environments, each plain or async. All raise RolloutFault."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads

    def sandbox(self, env: Environment, task: Task) -> SandboxSpec | None:
        try:
            with contained():
                spec = env.sandbox(task)
        except Exception as error:
            raise RolloutFault.of(StopReason.ENV_ERROR, describe("environment.sandbox", error)) from error
        if spec is not None and not isinstance(spec, SandboxSpec):
            raise RolloutFault(f"environment.sandbox returned {type(spec).__name__}, not a SandboxSpec")
        return spec

    async def reset(self, env: Environment, task: Task, ctx: EnvironmentContext) -> list[Message]:
        messages = await self._call("reset", env.reset, task, ctx)
        if not _are_messages(messages):
            raise RolloutFault("environment.reset returned no list of Messages")
        return list(messages)

    async def step(self, env: Environment, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        step = await self._call("step", env.step, reply, results)
        if not isinstance(step, StepResult):
            raise RolloutFault(f"environment.step returned {type(step).__name__}, not a StepResult")
        if step.history is not None and not _are_messages(step.history):
            raise RolloutFault("environment.step returned a history that is no list of Messages")
        if not isinstance(step.reward, Real):
            raise RolloutFault(f"environment.step returned the reward {step.reward!r}, which is no number")
        return step

    async def collect(self, env: Environment, timeout_s: float) -> Artifacts:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                artifacts = await self._call("collect", env.collect)
        except TimeoutError:
            raise RolloutFault(f"environment.collect took longer than limits.grade_timeout_s={timeout_s:g}") from None
        if not isinstance(artifacts, Artifacts):
            raise RolloutFault(f"environment.collect returned {type(artifacts).__name__}, not Artifacts")
        return artifacts

    async def close(self, env: Environment, timeout_s: float) -> None:
        """Never raises: the episode is over; a failing close changes nothing that was measured."""
        with suppress(Exception):
            async with asyncio.timeout(timeout_s):
                await self.threads.call(env.close)

    async def _call(self, name: str, hook: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self.threads.call(hook, *arguments)
        except (RolloutFault, StoreError):
            raise
        except Exception as error:
            raise RolloutFault.of(StopReason.ENV_ERROR, describe(f"environment.{name}", error)) from error


def _are_messages(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(message, Message) for message in value)
