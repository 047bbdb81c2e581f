"""`agentrl env check` plays the attacks that an environment declares, random play, and several episodes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.environment import Attack, EnvironmentContext, StepResult, scripted
from agentrl.testing.contract import check
from agentrl.testing.toy import Toy, ToyConfig, repeat, submit
from agentrl.tool import ToolResult
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory

AT_ONCE, ATTACKS, GARBAGE = "episodes at once are as alone", "attacks don't pay", "garbage pays little"


class Right(Toy):
    tools = (repeat, submit)


def lines(env: type[Toy]) -> dict[str, str]:
    results = check(env, ToyConfig(num_tasks=2), num_tasks=2, timeout_s=5.0)
    return {result.check: result.line() for result in results}


def says(text: str, name: str = "", arguments: str = "{}") -> Message:
    calls = [ToolCall(id="0", name=name, arguments=arguments)] if name else []
    return Message(role="assistant", content=text, tool_calls=calls)


def test_an_attack_that_is_paid_is_named_and_one_below_its_bound_is_not() -> None:
    class Cheated(Right):
        def attacks(self, task: Task) -> Sequence[Attack]:
            word = says(str(task.data["word"]))
            allowed = Attack(name="allowed", policy=scripted(word), max_reward=1.0)
            return (allowed, Attack(name="just says it", policy=scripted(word)))

    line = lines(Cheated)[ATTACKS]
    assert line.startswith(f"✗ {ATTACKS}: task train-0 of train paid the attack 'just says it' 1 where at most 0 (max_")


def test_the_calls_of_an_attack_may_be_anything() -> None:
    class Wild(Right):
        def attacks(self, task: Task) -> Sequence[Attack]:
            calls = says("", "rm"), says("", "repeat", "{"), says("", "repeat", '{"text": 7}'), says("red, green, blue")
            return (Attack(name="wild calls", policy=scripted(*calls[:3])), Attack(name="x", policy=scripted(calls[3])))

    assert "the attack 'x' 1" in lines(Wild)[ATTACKS]


def test_two_attacks_of_one_name_are_refused() -> None:
    class Twice(Right):
        def attacks(self, task: Task) -> Sequence[Attack]:
            return (Attack(name="a", policy=scripted()), Attack(name="a", policy=scripted()))

    assert "two attacks have one name: a, a" in lines(Twice)[ATTACKS]


def test_random_play_that_is_paid_is_found() -> None:
    class PaysForWords(Right):
        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=float(any(turn.message.text for turn in trajectory.turns)))

    assert "paid random play 1 where at most 0 (max_garbage_reward) is due" in lines(PaysForWords)[GARBAGE]


class Shared(Right):
    """Keeps the last word of the last episode where all episodes see it."""

    said = ""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        type(self).said = reply.text
        await asyncio.sleep(0.01)
        return await super().step(reply, results)

    async def collect(self) -> Artifacts:
        return Artifacts(data={"said": self.said})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=float(str(task.data["word"]) in str(artifacts.data["said"])))


class SharedAlone(Shared):
    one_at_a_time = True


class OtherStart(Right):
    """Begins with what the episode before it left."""

    num_open = 0

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        type(self).num_open += 1
        await asyncio.sleep(0.01)
        return [*task.messages, Message(role="user", content=f"{self.num_open} play.")]

    async def close(self) -> None:
        type(self).num_open = max(0, self.num_open - 1)


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (Shared, f"✗ {AT_ONCE}: among other episodes, train-"),
        (OtherStart, f"✗ {AT_ONCE}: among other episodes, train-0 of train began with other messages than alone; keep"),
        (SharedAlone, f"✓ {AT_ONCE} (10 one at a time, as it asks for)"),
        (Right, f"✓ {AT_ONCE} (10 at once)"),
    ],
)
def test_episodes_that_disturb_each_other_are_found(env: type[Toy], line: str) -> None:
    assert lines(env)[AT_ONCE].startswith(line)


def test_what_is_not_declared_is_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Bare(Right):
        max_garbage_reward = None

        def attacks(self, task: Task) -> Sequence[Attack]:
            return ()

    monkeypatch.setattr(plugins, "environment", lambda name: Bare)
    assert main(["env", "check", "toy", "--tasks", "1"]) == 0
    out = capsys.readouterr().out
    assert f"– {ATTACKS}: not shown, it declares none" in out and f"– {GARBAGE}: not shown" in out
    assert out.endswith("toy keeps the contract; 2 not shown\n")
