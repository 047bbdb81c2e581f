"""The contract suite finds what an environment does wrong, says what to do, and passes the ones that are right."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.environment import EnvironmentConfig, EnvironmentContext, Oracle, StepResult
from agentrl.envs.calculator import Calculator, CalculatorConfig
from agentrl.testing.chat import ScriptedChat
from agentrl.testing.checks import CHECKS
from agentrl.testing.contract import check, verify
from agentrl.testing.subject import Result
from agentrl.testing.toy import Toy, ToyConfig, repeat, submit
from agentrl.tool import ToolResult, tool
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory

OPTIONS = ToyConfig(num_tasks=2)


class Right(Toy):
    """Keeps the contract. The others break one thing each."""

    tools = (repeat, submit)  # random play would sleep long


class NoTasks(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return []


class NotANumber(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return [task.model_copy(update={"data": {**task.data, "x": float("nan")}}) for task in Toy.tasks(config, split)]


class DoubleIds(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return [task.model_copy(update={"id": "same"}) for task in Toy.tasks(config, split)]


class WrongSplit(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return Toy.tasks(config, "train")


class Random(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return [
            task.model_copy(update={"data": {**task.data, "x": random.random()}}) for task in Toy.tasks(config, split)
        ]


class ByHash(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return [task.model_copy(update={"data": {**task.data, "x": hash("x")}}) for task in Toy.tasks(config, split)]


class OneSplit(Right):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return [task.model_copy(update={"split": split}) for task in Toy.tasks(config, "train")]


@tool
def undescribed(text: str) -> str:
    return text


class Undescribed(Right):
    tools = (*Toy.tools, undescribed)


class PaysForSilence(Right):
    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=1.0)


class PaysTheOracleLittle(Right):
    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        grade = await super().grade(task, trajectory, artifacts, ctx)
        return Grade(reward=0.5 * (grade.reward or 0.0))


class WrongCall(Right):
    def oracle(self, task: Task) -> Oracle:
        call = ToolCall(id="call_0", name="repeat", arguments='{"txt": "red"}')
        return lambda messages: Message(role="assistant", tool_calls=[call])


class OtherStart(Right):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        return [*task.messages[:-1], Message(role="user", content=f"{task.messages[-1].text} {random.random()}")]


class NoMessages(Right):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> Any:
        return "hello"


class NoStepResult(Right):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> Any:
        return None


class NanReward(Right):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        return StepResult(reward=float("nan"), terminated=True)


class NoArtifacts(Right):
    async def collect(self) -> Any:
        return {"data": 1}


class CantMeasure(Right):
    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=None, unmeasured="no ruler")


class HangingStep(Right):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        await asyncio.sleep(3600)
        raise AssertionError


class Stubborn(Right):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            await asyncio.sleep(4)
        return await super().step(reply, results)


class BlockingStep(Right):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        time.sleep(4)
        return StepResult(terminated=True)


class NeedsReset(Right):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.file = "open"
        return task.messages

    async def close(self) -> None:
        del self.file


class Forgetful(Right):
    """Grades from what its last instance remembers."""

    last = ""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        type(self).last = reply.text
        return await super().step(reply, results)

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=float(str(task.data["word"]) in cls.last))


class LeavesATask(Right):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.left = asyncio.create_task(asyncio.sleep(3600))
        return task.messages


class LeavesAThread(Right):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        threading.Thread(target=time.sleep, args=(60,), name="left-behind", daemon=True).start()
        return task.messages


class LeavesAProcess(Right):
    children: list[subprocess.Popen[bytes]] = []  # noqa: RUF012 - the test ends them

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return task.messages


class LeavesAFile(Right):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        with tempfile.NamedTemporaryFile(prefix="left-", delete=False) as file:
            file.write(b"x")
        return task.messages


BROKEN: list[tuple[type[Toy], str, str]] = [
    (NoTasks, "tasks are there, and are JSON", "there are no train tasks"),
    (NotANumber, "tasks are there, and are JSON", "can't be stored as JSON"),
    (DoubleIds, "tasks are there, and are JSON", "an id is unique"),
    (WrongSplit, "tasks are there, and are JSON", "was returned for 'held_out'"),
    (Random, "the same config gives the same tasks", "draw from a seed"),
    (ByHash, "the same config gives the same tasks", "don't depend on hash()"),
    (OneSplit, "train and held_out have no task in common", "2 tasks are in both splits"),
    (Undescribed, "tools have a name, a description and a schema", "give its function a docstring"),
    (PaysForSilence, "saying nothing pays nothing", "paid the null policy 1 where at most 0 (max_null_reward) is due"),
    (PaysTheOracleLittle, "the oracle is paid", "paid the oracle 0.5 where at least 1 (min_oracle_reward) is due"),
    (WrongCall, "the oracle is paid", "the oracle's call of repeat can't run"),
    (OtherStart, "the same seed gives the same start", "draw from ctx.seed"),
    (NoMessages, "saying nothing pays nothing", "reset returned str where a list of Message is due"),
    (NoStepResult, "saying nothing pays nothing", "step returned NoneType; return a StepResult"),
    (NanReward, "saying nothing pays nothing", "step's reward is nan"),
    (NoArtifacts, "saying nothing pays nothing", "collect returned dict; return Artifacts"),
    (CantMeasure, "saying nothing pays nothing", "grade could not measure: no ruler"),
    (HangingStep, "saying nothing pays nothing", "step took longer than 1.5 s"),
    (Stubborn, "a step can be cut off", "step goes on after it was cancelled"),
    (BlockingStep, "saying nothing pays nothing", "step has blocked the event loop for 1.5 s"),
    (NeedsReset, "close works without reset", "close raised AttributeError"),
    (Forgetful, "grades follow from what is stored", "use only what grade is given"),
    (LeavesATask, "the same seed gives the same start", "asyncio tasks still run"),
    (LeavesAThread, "nothing is left behind", "thread 'left-behind'"),
    (LeavesAFile, "nothing is left behind", "temporary file left-"),
]


def problems(results: list[Result]) -> dict[str, str]:
    return {result.check: result.problem for result in results if result.problem is not None}


def test_an_environment_that_is_right_passes_every_check() -> None:
    results = check(Right, OPTIONS)
    assert problems(results) == {}
    assert [result.check for result in results] == [*CHECKS, "nothing is left behind"]
    assert all(result.line().startswith("✓ ") for result in results)


@pytest.mark.parametrize(("env", "name", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_wrong_is_found_and_named(env: type[Toy], name: str, says: str) -> None:
    found = problems(check(env, OPTIONS, num_tasks=1, timeout_s=1.5 if says.endswith("1.5 s") else 10.0))
    assert name in found and says in found[name], found


def test_a_child_process_that_is_left_behind_is_found() -> None:
    try:
        found = problems(check(LeavesAProcess, OPTIONS, num_tasks=1))
    finally:
        for child in LeavesAProcess.children:
            child.kill()
            child.wait()
    assert set(found) == {"nothing is left behind"}
    assert f"child process {LeavesAProcess.children[0].pid}" in found["nothing is left behind"]


def test_a_hanging_step_is_ended_and_the_environment_is_closed() -> None:
    closed: list[str] = []

    class Closes(HangingStep):
        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            try:
                return await super().step(reply, results)
            except asyncio.CancelledError:
                closed.append("cut off")
                raise

        async def close(self) -> None:
            closed.append("closed")

    check(Closes, OPTIONS, num_tasks=1, timeout_s=1.5)
    assert closed[:2] == ["cut off", "closed"]


def test_bounds_are_the_environments_own() -> None:
    class Lenient(PaysTheOracleLittle):
        min_oracle_reward = 0.5

    assert "the oracle is paid" not in problems(check(Lenient, OPTIONS, num_tasks=1))


def test_an_environment_without_an_oracle_is_told_so_and_passes() -> None:
    class NoOracle(Right):
        def oracle(self, task: Task) -> Any:
            return None

    (result,) = [result for result in check(NoOracle, OPTIONS, num_tasks=1) if result.check == "the oracle is paid"]
    assert result.line().startswith("– the oracle is paid: not shown, it has no oracle")


def test_verify_raises_with_every_line_that_failed() -> None:
    verify(Right, OPTIONS, num_tasks=1)
    with pytest.raises(AssertionError, match=r"PaysForSilence breaks the contract:\n✗ saying nothing pays nothing"):
        verify(PaysForSilence, OPTIONS, num_tasks=1)


class Simulated(Right):
    """Asks a user simulator how to begin."""

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        said = await ctx.chat("user", task.messages)
        return [Message(role="user", content=said.text)]


def test_an_environment_that_asks_needs_somebody_who_answers() -> None:
    async def chat(agent: str, messages: list[Message]) -> Message:
        return Message(role="assistant", content=f"{agent} says red")

    assert problems(check(Simulated, OPTIONS, num_tasks=1, chat=chat)) == {}
    assert "set chat.url" in problems(check(Simulated, OPTIONS, num_tasks=1))["saying nothing pays nothing"]


async def test_env_check_asks_the_endpoint_of_the_config(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: Simulated)
    async with ScriptedChat(lambda messages: "Say it.") as server:
        arguments = ["env", "check", "toy", "--tasks", "1", "chat.model=m", f"chat.url='{server.url}'"]
        assert await asyncio.to_thread(main, arguments) == 0
    assert len(server.seen) >= 4 and "toy keeps the contract" in capsys.readouterr().out


def test_env_check_prints_a_line_per_check_and_fails_where_one_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            ["env", "check", "calculator", "--tasks", "1", "env.level=1", "env.train_tasks=20", "env.held_out_tasks=9"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "✓ tasks are there, and are JSON (20 train, 9 held_out)" in out and "✗" not in out
    monkeypatch.setattr(plugins, "environment", lambda name: PaysForSilence)
    assert main(["env", "check", "toy", "--tasks", "1"]) == 1
    out = capsys.readouterr().out
    assert (
        "✗ saying nothing pays nothing: task train-0 of train paid the null policy 1" in out and "checks failed" in out
    )
    assert main(["env", "check", "calculator", "env.levle=1"]) == 2


def test_the_calculator_keeps_the_contract() -> None:
    verify(Calculator, CalculatorConfig(level=3, max_operand=99, train_tasks=50, held_out_tasks=20))


def test_the_suite_needs_no_model_and_nothing_heavy() -> None:
    code = (
        "import sys, agentrl.testing.contract\n"
        "print([name for name in ('torch', 'transformers', 'sqlalchemy', 'aiohttp', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
