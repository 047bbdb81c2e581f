"""A toy environment: say a word back. Its options make each hook fail in its own way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agentrl.environment import Attack, Environment, EnvironmentConfig, EnvironmentContext, Oracle, StepResult
from agentrl.tool import Tool, ToolResult, tool
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory

WORDS = ("red", "green", "blue", "gray")


@tool
def repeat(text: str, times: int = 1) -> str:
    """Repeat a text."""
    return text * times


@tool
def fail(reason: str) -> str:
    """Raise an error."""
    raise ValueError(reason)


@tool
def sleep(seconds: float) -> str:
    """Block the thread."""
    time.sleep(seconds)
    return "slept"


@tool
def submit(answer: str) -> ToolResult:
    """Hand in the answer; the episode ends."""
    return ToolResult(content=answer, terminated=True)


class ToyConfig(EnvironmentConfig):
    """Options of the toy environment."""

    num_tasks: int = 4
    fault: str | None = None
    """A hook that raises: reset, step, collect or close."""
    slow_s: float = 0.0
    """Seconds that `step` takes."""
    messages: tuple[str, ...] = ()
    """Few-shot: pairs of a user's and an assistant's text put before the question."""


class Toy(Environment):
    """Solved by answering with the word of the task."""

    Config = ToyConfig
    version = "1"
    max_garbage_reward = 0.0
    tools: Sequence[Tool] = (repeat, fail, sleep, submit)
    config: ToyConfig

    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        assert isinstance(config, ToyConfig)
        first = {"train": 0, "held_out": config.num_tasks}[split]
        shots = [
            Message(role="assistant" if place % 2 else "user", content=text)
            for place, text in enumerate(config.messages)
        ]
        return [
            Task(
                env="toy",
                id=f"{split}-{number}",
                split=split,
                messages=[*shots, Message(role="user", content=f"Say {WORDS[number % 4]} for task {number}.")],
                data={"word": WORDS[number % 4]},
            )
            for number in range(first, first + config.num_tasks)
        ]

    def _maybe_raise(self, hook: str) -> None:
        if self.config.fault == hook:
            raise RuntimeError(f"{hook} is broken on purpose")

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self._maybe_raise("reset")
        return task.messages

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        self._maybe_raise("step")
        await asyncio.sleep(self.config.slow_s)
        return await super().step(reply, results)

    async def collect(self) -> Artifacts:
        self._maybe_raise("collect")
        return Artifacts(data={"collected": True}, files={"log.txt": b"\x00\xff"})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        said = trajectory.turns[-1].message.text if trajectory.turns else ""
        return Grade(reward=float(str(task.data["word"]) in said), grader="toy", grader_version=cls.version)

    async def close(self) -> None:
        self._maybe_raise("close")

    def oracle(self, task: Task) -> Oracle:
        word = str(task.data["word"])

        def reply(messages: list[Message]) -> Message:
            if messages[-1].role != "tool":
                call = ToolCall(id="call_0", name="repeat", arguments=f'{{"text": "{word}"}}')
                return Message(role="assistant", tool_calls=[call])
            return Message(role="assistant", content=messages[-1].text)

        return reply

    def attacks(self, task: Task) -> Sequence[Attack]:
        """Says another word, and hands one in."""
        call = ToolCall(id="call_0", name="submit", arguments=f'{{"answer": "{task.data["word"]}"}}')
        silent = Message(role="assistant", tool_calls=[call])
        return (
            Attack(name="another word", policy=lambda messages: Message(role="assistant", content="white")),
            Attack(name="handed in and not said", policy=lambda messages: silent),
        )


class BadGrader(Toy):
    """Grades with what graders should not return: None, NaN, or an exception."""

    grade_with: float | str | None = None

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        if isinstance(cls.grade_with, str):
            raise RuntimeError(cls.grade_with)
        return Grade(reward=cls.grade_with)
