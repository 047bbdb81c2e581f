"""An environment and tools that fail in every way, by seeded draws: for fault runs."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from agentrl.environment import EnvironmentContext, StepResult
from agentrl.testing.toy import Toy, ToyConfig, repeat
from agentrl.tool import ToolResult, tool
from agentrl.types import Artifacts, Grade, Message, Task, Trajectory

HOOKS = ("reset", "step", "collect", "grade", "close")
KINDS = ("error", "exit", "cancel", "nonsense", "hang")


@tool
def explode(text: str) -> str:
    """Raise."""
    raise ValueError(text)


@tool
def leave(text: str) -> str:
    """Try to end the process."""
    raise SystemExit(text)


@tool
def hang(seconds: float) -> str:
    """Block the thread."""
    time.sleep(seconds)
    return "awake"


@tool
def flood(megabytes: int) -> str:
    """Return too much."""
    return "0123456789abcdef" * (megabytes * 65536)


@tool
def raw(text: str) -> Any:
    """Return bytes that are no UTF-8."""
    return b"\xff\x00" + text.encode()


@tool
def nothing(text: str) -> None:
    """Return nothing."""


class FaultyConfig(ToyConfig):
    """Options of the faulty environment."""

    fault_share: float = 0.1
    """Share of the episodes in which a hook fails."""
    hang_s: float = 2.0
    seed: int = 0


class Faulty(Toy):
    """A toy whose episodes draw which hook fails and how; the attempts of a sample draw anew.

    `reset` and `step` are plain functions, which may hang in their threads; the others are async.
    """

    Config = FaultyConfig
    tools = (repeat, explode, leave, hang, flood, raw, nothing)
    config: FaultyConfig
    _episodes = itertools.count()

    def __init__(self, config: FaultyConfig) -> None:
        super().__init__(config)
        draw = random.Random(f"{config.seed}/{next(Faulty._episodes)}")
        self.broken_hook = draw.choice(HOOKS) if draw.random() < config.fault_share else ""
        self.kind = draw.choice(KINDS)

    def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:  # type: ignore[override]
        if self.broken_hook == "reset":
            messages: list[Message] = _fail(self.kind, self.config.hang_s, task.messages)
            return messages
        return task.messages

    def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:  # type: ignore[override]
        pairs = zip(reply.tool_calls, results, strict=True)
        messages = [Message(role="tool", content=r.content, tool_call_id=c.id, name=c.name) for c, r in pairs]
        answer = StepResult(messages=messages, terminated=not results)
        return _fail(self.kind, self.config.hang_s, answer) if self.broken_hook == "step" else answer

    async def collect(self) -> Artifacts:
        data: dict[str, JsonValue] = {"grade": self.kind} if self.broken_hook == "grade" else {}
        artifacts = Artifacts(data=data | {"hang_s": self.config.hang_s})
        return (
            await _fail_async(self.kind, self.config.hang_s, artifacts) if self.broken_hook == "collect" else artifacts
        )

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        grade = await super().grade(task, trajectory, artifacts, ctx)
        kind = artifacts.data.get("grade")
        return await _fail_async(str(kind), float(str(artifacts.data["hang_s"])), grade) if kind else grade

    async def close(self) -> None:
        if self.broken_hook == "close":
            await _fail_async(self.kind, self.config.hang_s, None)


def _fail(kind: str, hang_s: float, right: Any) -> Any:
    """Raise, hang and then return what is right, or return what isn't."""
    if kind == "exit":
        raise SystemExit(3)
    if kind == "hang":
        time.sleep(hang_s)
        return right
    if kind == "nonsense":
        return object()
    raise RuntimeError("broken on purpose")


async def _fail_async(kind: str, hang_s: float, right: Any) -> Any:
    if kind == "cancel":
        raise asyncio.CancelledError
    if kind == "hang":
        await asyncio.sleep(hang_s)
        return right
    return _fail(kind, hang_s, right)
