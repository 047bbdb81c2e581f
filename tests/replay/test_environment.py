"""`agentrl replay TRAJECTORY --env`: equal where nothing changed, else the first difference and its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from agentrl.environment import Environment, EnvironmentContext, StepResult
from agentrl.errors import EngineError
from agentrl.rollout.chat_client import ChatReply
from agentrl.rollout.chat_messages import Completion
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.tool import Tool, ToolResult, tool
from agentrl.types import Artifacts, Message, StopReason, Task, Trajectory
from tests.models.families import tokenizer
from tests.replay.stage import Stage, replay
from tests.rollout.loops import call

CALL = call("repeat", '{"text": "red"}')


def user(text: str) -> Message:
    return Message(role="user", content=text)


# ------------------------------------------------------------------------------------------------- nothing changed

THOUGHT = "<think>\nfirst thought\n</think>\n\none"


class Again(Toy):
    """Asks again once."""

    num_steps = 0

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        self.num_steps += 1
        return StepResult(messages=[user("again")], reward=0.5) if self.num_steps == 1 else StepResult(terminated=True)


class Summarizing(Again):
    """Puts a summary in the place of the conversation."""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        step = await super().step(reply, results)
        return step if step.terminated else StepResult(history=[user("so far")], messages=[user("go on")])


CASES: dict[str, Callable[[Stage], list[Trajectory]]] = {
    "completed": lambda stage: stage.record(CALL, "red"),
    "a tool that raised then too": lambda stage: stage.record(call("fail", '{"reason": "no"}'), "red"),
    "calls that can't run": lambda stage: stage.record(call("unknown", "{}"), "<tool_call>{", "red"),
    "parse_limit": lambda stage: stage.record("<tool_call>{</tool_call>", limits={"max_bad_calls": 2}),
    "max_turns": lambda stage: stage.record(CALL, limits={"max_turns": 2}),
    "turn_length": lambda stage: stage.record(CALL, "green…", limits={"max_turn_tokens": 60}),
    "token_budget": lambda stage: stage.record(CALL, limits={"max_episode_tokens": 100, "max_turns": 99}),
    "context_overflow": lambda stage: stage.record(CALL, window=1000, limits={"max_turns": 99}),
    "engine_error": lambda stage: stage.record(CALL, EngineError("gone"), rollout={"max_attempts": 1}),
    "env_error": lambda stage: stage.record("red", options={"fault": "step"}),
    "env_error before the first reply": lambda stage: stage.record("red", options={"fault": "reset"}),
    "a step's reward and an ending by the environment": lambda stage: stage.record("one", "two", env=Again),
    "a summary": lambda stage: stage.record("one", "two", env=Summarizing),
}
ENDINGS = [name for name in CASES if name in set(StopReason)]


@pytest.mark.parametrize("case", CASES)
def test_what_has_not_changed_is_equal(stage: Stage, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    trajectories = CASES[case](stage)
    if case in ENDINGS:
        assert trajectories[0].stop_reason == case
    for trajectory in trajectories:
        assert replay(stage, trajectory.id, "--env") == 0
        assert f"equal: {len(trajectory.turns)} replies" in capsys.readouterr().out


def test_the_cases_have_the_endings_of_limits_and_faults() -> None:
    assert len(ENDINGS) == 8


def test_each_attempt_is_replayed_with_its_own_record(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = stage.record(CALL, EngineError("gone"), "red")
    assert (first.stop_reason, second.stop_reason) == (StopReason.ENGINE_ERROR, StopReason.COMPLETED)
    assert first.env_seed == second.env_seed
    assert [replay(stage, one.id, "--env") for one in (first, second)] == [0, 0]
    assert "equal: 1 replies" in capsys.readouterr().out


@pytest.mark.parametrize("env", [Again, Summarizing])
def test_a_trajectory_with_branches(stage: Stage, env: type[Environment], capsys: pytest.CaptureFixture[str]) -> None:
    """A template that drops earlier thinking: the context is written anew, and compared id by id."""
    tokenizer("qwen3").save_pretrained(stage.model)
    (trajectory,) = stage.record(THOUGHT, "two", env=env, rollout={"renderer_mode": "rerender"})
    assert trajectory.renderer_mode == "rerender" and trajectory.num_prefix_breaks == 1
    assert replay(stage, trajectory.id, "--env") == 0
    assert "equal: 2 replies" in capsys.readouterr().out


class Customer(Toy):
    """A simulated user answers each reply, and a judge looks at the end."""

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.ctx = ctx
        return [user((await ctx.chat("user", [user("Open.")])).text)]

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        answer = await self.ctx.chat("user", [user(f"It said {reply.text}.")])
        return StepResult(messages=[answer.model_copy(update={"role": "user"})], terminated="two" in reply.text)

    async def collect(self) -> Artifacts:
        return Artifacts(data={"verdict": (await self.ctx.chat("judge", [user("Well?")])).text})


class Live:
    """An endpoint that never says the same twice."""

    name = "live"

    def __init__(self) -> None:
        self.numbers = itertools.count()

    async def ask(self, messages: Sequence[Message], *, sampling: dict[str, object], request_id: str) -> ChatReply:
        message = Message(role="assistant", content=f"live {next(self.numbers)}")
        return ChatReply(completion=Completion(message=message, finish_reason="stop", num_tokens=1), sampling={})


def test_other_agents_answer_from_the_record(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record("one", "two", env=Customer, endpoint=Live())
    assert [turn.agent for turn in trajectory.turns] == ["user", "main", "user", "main", "user", "judge"]
    assert replay(stage, trajectory.id, "--env") == 0
    assert "equal: 2 replies" in capsys.readouterr().out


class OtherQuestion(Customer):
    async def collect(self) -> Artifacts:
        return Artifacts(data={"verdict": (await self.ctx.chat("judge", [user("Was it good?")])).text})


# ------------------------------------------------------------------------------------------------- what is different


def tools_with(repeat: Callable[[str, int], str]) -> Sequence[Tool]:
    """The toy's, of which one does something else."""

    @tool
    def changed(text: str, times: int = 1) -> str:
        """Repeat a text."""
        return repeat(text, times)

    changed.name = "repeat"
    return (changed, *Toy.tools[1:])


def gone(text: str, times: int) -> str:
    raise RuntimeError("the disk is gone")


class Louder(Toy):
    tools = tools_with(lambda text, times: text * times + "!")


class ToolRaises(Toy):
    tools = tools_with(gone)


class Reworded(Toy):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        return [user(task.messages[0].text.replace("task", "job"))]


class TwoMessages(Toy):
    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        return [*task.messages, user("Quick!")]


class NeverEnds(Toy):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        step = await super().step(reply, results)
        return StepResult(messages=step.messages or [user("More.")])


class EndsAtOnce(Toy):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        return StepResult(terminated=True)


class Raises(Toy):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        raise RuntimeError("the level file is gone")


class Pays(Toy):
    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        return replace(await super().step(reply, results), reward=0.25)


class OtherData(Toy):
    async def collect(self) -> Artifacts:
        return Artifacts(data={"collected": False}, files={"log.txt": b"\x00\xff"})


class OtherFile(Toy):
    async def collect(self) -> Artifacts:
        return Artifacts(data={"collected": True}, files={"log.txt": b"\x00\xfe"})


class NoFile(Toy):
    async def collect(self) -> Artifacts:
        return Artifacts(data={"collected": True})


DIFFERENT: dict[type[Environment], tuple[str, str, str]] = {
    Louder: ('turn 0, call repeat({"text": "red"}), character 7', "'ok: red'", "'ok: red!'"),
    ToolRaises: ('turn 0, call repeat({"text": "red"}), character 0', "'ok: red'", "the disk is gone"),
    Reworded: ("turn 0, user message 1 of 1, character 12", "'Say red for task 0.'", "'Say red for job 0.'"),
    TwoMessages: ("turn 0, user message 2 of 1, character 0", "nothing", "Quick!"),
    NeverEnds: ("the ending, character 0", "'completed after 2 replies'", "interrupted after 2 replies: the "),
    EndsAtOnce: ("the ending, character 16", "'completed after 2 replies'", "'completed after 1 replies'"),
    Raises: ("the ending, character 0", "'completed after 2 replies'", "env_error after 1 replies: envir"),
    Pays: ("turn 0, reward, character 2", "'0.0'", "'0.25'"),
    OtherData: ("artifact 'collected', character 0", "'true'", "'false'"),
    OtherFile: ("artifact file 'log.txt', character 1", "'\\x00ÿ'", "'\\x00þ'"),
    NoFile: ("artifact file 'log.txt', character 0", "'\\x00ÿ'", "nothing"),
}


@pytest.mark.parametrize("env", DIFFERENT, ids=lambda env: env.__name__)
def test_the_first_difference_is_named(
    stage: Stage, env: type[Environment], capsys: pytest.CaptureFixture[str]
) -> None:
    (trajectory,) = stage.record(CALL, "red")
    stage.use(env)
    assert replay(stage, trajectory.id, "--env") == 1
    first, recorded, now, verdict = capsys.readouterr().out.splitlines()
    where, was, came = DIFFERENT[env]
    assert first.startswith("first difference: ") and where in first
    assert recorded.startswith("  recorded  ") and was in recorded
    assert now.startswith("  now       ") and came in now
    assert "have changed since" in verdict


def test_an_ending_that_comes_early_is_a_difference(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record(CALL, limits={"max_turns": 2})
    stage.use(EndsAtOnce)
    assert replay(stage, trajectory.id, "--env") == 1
    assert "'max_turns after 2 replies'" in capsys.readouterr().out


def test_a_question_that_was_never_asked_is_a_difference(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record("one", "two", env=Customer, endpoint=Live())
    stage.use(OtherQuestion)
    assert replay(stage, trajectory.id, "--env") == 1
    out = capsys.readouterr().out
    assert "a question to ctx.chat" in out and "Well?" in out and "Was it good?" in out


class Dice(Toy):
    """Rolls a number that no seed decides."""

    numbers = itertools.count()

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        step = await super().step(reply, results)
        return StepResult(messages=[user(f"rolled {next(self.numbers)}")], terminated=step.terminated)


def test_an_environment_without_determinism_is_reported(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record(CALL, "red", env=Dice)
    assert replay(stage, trajectory.id, "--env") == 1
    out = capsys.readouterr().out
    assert "turn 1, user message 1 of 1, character 7" in out and "isn't deterministic" in out


def test_a_long_observation_is_shown_around_the_place_and_harmless(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    (trajectory,) = stage.record(call("repeat", '{"text": "ab", "times": 300}'), "red", limits={"max_turns": 2})
    stage.use(Louder)
    assert replay(stage, trajectory.id, "--env") == 1
    first, recorded, now, _ = capsys.readouterr().out.splitlines()
    assert first.endswith("character 604") and recorded.startswith("  recorded  …'") and len(now) < 100


def test_another_template_is_told_from_another_environment(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record(CALL, "red")
    template = stage.model / "chat_template.jinja"
    template.write_text(template.read_text().replace("Call: ", "Calls look so: "))
    assert replay(stage, trajectory.id, "--env") == 1
    assert "turn 0, the same messages with other tools or in another template" in capsys.readouterr().out


def test_nothing_is_stored(stage: Stage) -> None:
    (trajectory,) = stage.record(CALL, "red")
    replay(stage, trajectory.id, "--env")
    with Store.open(stage.database) as store:
        assert [one.id for one in store.find_trajectories()] == [trajectory.id]
