"""`agentrl env check` on environments that need boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.config_sandbox import SandboxConfig
from agentrl.environment import EnvironmentConfig, EnvironmentContext
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.contract import check, verify
from agentrl.testing.toy import Toy, repeat, submit
from agentrl.tool import ToolContext, tool
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory
from tests.rollout.faulty_boxes import register

LOCAL = SandboxConfig(backend="local", options={"unsafe": True})


@tool
async def shell(command: str, ctx: ToolContext) -> str:
    """Run a command."""
    assert ctx.sandbox is not None
    return (await (await ctx.sandbox.session()).run(command, timeout_s=20)).text


class Writes(Toy):
    """Solved by writing the word into a file, which is read back in another box."""

    tools = (shell, submit, repeat)

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        self.box: Sandbox | None = None

    def sandbox(self, task: Task) -> SandboxSpec | None:
        return SandboxSpec(files={"seen.txt": b""})

    @classmethod
    def grading_sandbox(cls, task: Task) -> SandboxSpec | None:
        return SandboxSpec()

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.box = ctx.sandbox
        return task.messages

    async def collect(self) -> Artifacts:
        assert self.box is not None
        return Artifacts(files={"seen.txt": await self.box.read("seen.txt")})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        assert ctx.sandbox is not None
        await ctx.sandbox.write("seen.txt", artifacts.files["seen.txt"])
        done = await ctx.sandbox.exec(["grep", "-c", str(task.data["word"]), "seen.txt"], timeout_s=20)
        return Grade(reward=float(done.exit_code == 0))

    def oracle(self, task: Task) -> Any:
        command = f"echo {task.data['word']} >> seen.txt"

        def reply(messages: list[Message]) -> Message:
            if messages[-1].role == "tool":
                return Message(role="assistant", content="done")
            call = ToolCall(id="0", name="shell", arguments=f'{{"command": "{command}"}}')
            return Message(role="assistant", tool_calls=[call])

        return reply


def test_an_environment_with_boxes_keeps_the_contract() -> None:
    """Played in real boxes by its oracle, graded in fresh ones; no process and no file is left."""
    verify(Writes, sandbox=LOCAL, num_tasks=1, timeout_s=30)


def test_a_process_that_writes_on_is_dead_when_the_work_is_collected() -> None:
    """G04: a loop that the agent left in its shell doesn't write while its work is read."""

    class Runaway(Writes):
        async def collect(self) -> Artifacts:
            assert self.box is not None
            first = await self.box.read("seen.txt")
            await self.box.exec("sleep 0.5", timeout_s=20)
            return Artifacts(files={"seen.txt": first if first == await self.box.read("seen.txt") else b""})

        def oracle(self, task: Task) -> Any:
            command = f"(while :; do echo {task.data['word']} >> seen.txt; sleep 0.01; done) & sleep 0.3"

            def reply(messages: list[Message]) -> Message:
                if messages[-1].role == "tool":
                    return Message(role="assistant", content="done")
                call = ToolCall(id="0", name="shell", arguments=f'{{"command": "{command}"}}')
                return Message(role="assistant", tool_calls=[call])

            return reply

    verify(Runaway, sandbox=LOCAL, num_tasks=1, timeout_s=30)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"missing": ["no bwrap: install it"]}, "sandbox: the sandbox faulty can't start boxes on this machine"),
        ({"failing_starts": 99}, "sandbox: the sandbox faulty gave no box: start 0 fails by plan"),
    ],
)
def test_a_box_that_cannot_be_had_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], problem: str
) -> None:
    register(tmp_path, monkeypatch)
    results = check(Writes, sandbox=SandboxConfig(backend="faulty", options=plan), num_tasks=1)
    problems = [str(result.problem) for result in results if result.problem]
    assert problems[0].startswith(problem)


def test_a_spec_that_is_none_is_told_as_such() -> None:
    class Wrong(Writes):
        def sandbox(self, task: Task) -> SandboxSpec | None:
            return "a box"  # type: ignore[return-value]

    results = check(Wrong, sandbox=LOCAL, num_tasks=1)
    assert "sandbox returned str; return a SandboxSpec or None" in [str(result.problem) for result in results]
