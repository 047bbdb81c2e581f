"""One cell of the matrix: a template plays a scenario through the real AgentLoop, and every id is accounted for."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agentrl.batch.rows import build_rows
from agentrl.config import LimitsConfig, SamplingConfig
from agentrl.environment import Environment, EnvironmentConfig, EnvironmentContext, StepResult, tool_messages
from agentrl.errors import TemplateError
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.rollout.parser import HermesParser, ToolCallParser, write_reply
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.testing.endpoint import Reply, ScriptedEndpoint
from agentrl.testing.memory import MemoryRecorder
from agentrl.tool import ToolResult, tool
from agentrl.types import Artifacts, Grade, Message, Sample, StopReason, Task, ToolCall, Trajectory
from tests.models.families import BY_TEMPLATE, renderer
from tests.models.oracle import FIRST_ROUND_ONLY, HERMES, RESULTS_OF_CALLS_ONLY, Oracle, OracleRefused, shows_calls
from tests.models.replies import StandInParser, awkward_ids, reply_text
from tests.models.scenarios import Scenario

Mark = Literal["✓", "branch", "refused"]


@dataclass(frozen=True)
class Cell:
    """How a template and a scenario get on."""

    mark: Mark
    reason: str = ""


@dataclass
class Script:
    """What the model will say, turn by turn."""

    parser: ToolCallParser
    replies: list[Reply] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    """What the replies mean."""


@tool
def look(at: str) -> str:
    """Look at a thing."""
    raise NotImplementedError  # replaced in each episode


SPECS = [look.spec()]


async def play(name: str, scenario: Scenario, endpoint: ScriptedEndpoint, client: HttpClient) -> Cell:
    """Raises AssertionError for anything that isn't exact, a branch that the template asks for, or a refusal."""
    made = renderer(name)
    scenario = scenario.with_control("".join(made.encoder.control))
    tools = SPECS if scenario.uses_tools else []
    if reason := refusal(name, bool(tools)):
        return Cell("refused", reason)
    oracle = Oracle(name, made.tokenizer, [] if made.tools_in_system else tools)
    script = write_script(name, scenario, made, oracle)
    endpoint.seen.clear()
    endpoint.script = lambda seen: script.replies[seen.turn]
    recorder = MemoryRecorder()
    sample = await run(scenario, made, script.parser, client, recorder)
    check_ids(sample, recorder, endpoint, script)
    assert sample.trajectory.turns[0].prompt_ids == made.start(scenario.first, tools)
    check_rows(sample)
    check_control(sample.trajectory, made)
    if sample.trajectory.stop_reason is StopReason.ENV_ERROR:
        return Cell("refused", why_refused(sample.trajectory))
    if scenario.ending != "cut":
        check_messages(sample.trajectory, script)
    expected = StopReason.TURN_LENGTH if scenario.ending == "cut" else StopReason.COMPLETED
    assert sample.trajectory.stop_reason is expected, sample.trajectory.error
    return compare(name, scenario, sample.trajectory, made, oracle)


@functools.cache
def refusal(name: str, with_tools: bool) -> str:
    """Why the self-check at start refuses the template, or nothing."""
    try:
        renderer(name).check(SPECS if with_tools else [])
    except TemplateError as error:
        return str(error)
    return ""


def why_refused(trajectory: Trajectory) -> str:
    error = trajectory.error or ""
    assert "TemplateError: the chat template of" in error or "an assistant message can't be appended" in error, error
    return error


# ---- the episode ----


def write_script(name: str, scenario: Scenario, made: Renderer, oracle: Oracle) -> Script:
    in_form = name in HERMES or scenario.as_text or not shows_calls(name)
    meanings: dict[str, Message] = {}
    parser = HermesParser(in_think=made.opens_think) if in_form else StandInParser(meanings)
    script, history, results = Script(parser), list(scenario.first), iter(scenario.results)
    for index, reply in enumerate(map(with_ids, itertools.count(), scenario.replies)):
        shown = in_content(reply) if in_form and name not in HERMES else reply
        answers = scenario.answers[index] if index < len(scenario.answers) else []
        new = [*tool_messages(reply, [ToolResult(content=next(results)) for _ in reply.tool_calls]), *answers]
        text = reply_text(name, oracle, made.opens_think, history, shown, new)
        ids = awkward_ids(made, text)
        assert ids[-1] in made.stop_ids
        meanings[made.decode(ids[:-1])] = reply
        script.messages.append(reply)
        script.replies.append(spoil(scenario, index, ids, made))
        history += [shown, *new]
    return script


def with_ids(turn: int, reply: Message) -> Message:
    """With the ids that the loop gives to calls."""
    calls = [
        ToolCall(id=f"call_{turn}_{index}", name=call.name, arguments=call.arguments)
        for index, call in enumerate(reply.tool_calls)
    ]
    return reply.model_copy(update={"tool_calls": calls})


def in_content(reply: Message) -> Message:
    return reply.model_copy(update={"content": write_reply(reply), "tool_calls": []})


def spoil(scenario: Scenario, index: int, ids: list[int], made: Renderer) -> Reply:
    """The first reply ends as the scenario says. No two ids of a reply have the same logprob."""
    finish: Literal["stop", "length"] = "stop"
    if index == 0 and scenario.ending == "cut":
        ids, finish = ids[: len(ids) * 2 // 3], "length"
    elif index == 0 and scenario.ending == "no stop":
        ids = ids[:-1]
    elif index == 0 and scenario.ending == "other stop":
        ids = [*ids[:-1], next(id for id in made.stop_ids if id != ids[-1])]
    return Reply(ids=ids, logprobs=[-(index + 1 + place / 1000) for place in range(len(ids))], finish_reason=finish)


async def run(
    scenario: Scenario, made: Renderer, parser: ToolCallParser, client: HttpClient, recorder: MemoryRecorder
) -> Sample:
    loop = AgentLoop(
        env_class=environment(scenario),
        env_config=EnvironmentConfig(),
        sampler=lambda env, task: EngineSampler(client),
        renderer=made,
        parser=parser,
        recorder=recorder,
        limits=LimitsConfig(),
        sampling=SamplingConfig(),
        window=16_384,
    )
    task = Task(env="matrix", id=scenario.name, split="train", messages=scenario.first)
    return await loop.run(RolloutSpec(run="matrix", task=task, group=None))


def environment(scenario: Scenario) -> type[Environment]:
    """An environment that says what the scenario says."""

    class Played(Environment):
        def __init__(self, config: EnvironmentConfig) -> None:
            super().__init__(config)
            results, self.num_replies = iter(scenario.results), 0

            @tool
            def look(at: str) -> str:
                """Look at a thing."""
                return next(results)

            self.tools = [look] if scenario.uses_tools else []

        @classmethod
        def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
            return []

        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            self.num_replies += 1
            if self.num_replies == len(scenario.replies):
                return StepResult(terminated=True)
            answers = scenario.answers[self.num_replies - 1 :][:1]
            return StepResult(messages=[*tool_messages(reply, results), *itertools.chain(*answers)])

        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=1.0)

    return Played


# ---- what must hold ----


def check_ids(sample: Sample, recorder: MemoryRecorder, endpoint: ScriptedEndpoint, script: Script) -> None:
    """Each prompt is the one before, what was sampled there, and new ids; all are recorded as they went over the wire."""
    turns, seen = sample.trajectory.turns, endpoint.seen
    assert len(turns) == len(seen) == len(recorder.turns) > 0
    expected: list[int] = []
    for turn, (_, recorded), request, reply in zip(turns, recorder.turns, seen, script.replies, strict=False):
        expected = expected + recorded.prompt_ids
        assert request.token_ids == expected == sample.trajectory.context(turn.index)
        assert recorded.sampled_ids == reply.ids and recorded.logprobs == reply.logprobs
        assert recorded.keep == len(expected) - len(recorded.prompt_ids)
        expected = expected + reply.ids


def check_messages(trajectory: Trajectory, script: Script) -> None:
    """What the model meant was understood."""
    for turn, meant in zip(trajectory.turns, script.messages, strict=True):
        assert turn.message.tool_calls == meant.tool_calls
        assert meant.text.strip() in turn.message.text and (turn.message.reasoning or None) == meant.reasoning


def check_rows(sample: Sample) -> None:
    """One Row, whose mask is 1 on exactly the sampled ids, each once and with its own logprob (T3, T4)."""
    (row,) = build_rows(sample)
    turns = sample.trajectory.turns
    assert row.ids.tolist() == sample.trajectory.full(len(turns) - 1)
    mask = [[0] * len(turn.prompt_ids) + [1] * len(turn.sampled_ids) for turn in turns]
    assert row.mask.tolist() == list(itertools.chain(*mask))
    logprobs = list(itertools.chain.from_iterable(turn.logprobs for turn in turns))
    assert row.logprobs[row.mask == 1].tolist() == logprobs and np.isnan(row.logprobs[row.mask == 0]).all()


def check_control(trajectory: Trajectory, made: Renderer) -> None:
    """No control id comes from a message of the environment: those there are are what the template wrote."""
    for turn in trajectory.turns[1:]:
        control = made.encoder.control
        num_ids = sum(id in set(control.values()) for id in turn.prompt_ids)
        in_text = len(list(made.encoder.written_by_template(made.decode(turn.prompt_ids))))
        in_contents = sum(len(list(made.encoder.written_by_template(m.text))) for m in turn.prompt_messages)
        assert num_ids == in_text - in_contents


# ---- against the template ----


def compare(name: str, scenario: Scenario, trajectory: Trajectory, made: Renderer, oracle: Oracle) -> Cell:
    """✓: the template's own rendering of the whole conversation, at every turn. Else it must be the template's doing."""
    cell = Cell("✓")
    as_text = not shows_calls(name) or (scenario.as_text and name not in HERMES | RESULTS_OF_CALLS_ONLY)
    history: list[Message] = []
    start = made.decode(trajectory.turns[0].prompt_ids)
    for turn in trajectory.turns:
        history += turn.prompt_messages
        if turn.index > 0:
            text = made.decode(trajectory.context(turn.index)).removeprefix(start)
            found = compare_turn(made, oracle, trajectory, turn.index, history, text)
            cell = cell if found.mark == "✓" else found
        history.append(in_content(turn.message) if as_text else turn.message)
    return cell


def compare_turn(
    made: Renderer, oracle: Oracle, trajectory: Trajectory, index: int, history: list[Message], text: str
) -> Cell:
    turn, before = trajectory.turns[index], trajectory.turns[index - 1]
    delta = made.decode(turn.prompt_ids)
    first = trajectory.turns[0].prompt_messages
    try:
        whole, played = oracle.render(history), oracle.render(first) + text
    except OracleRefused as refused:  # the whole conversation, but perhaps not what follows the last reply
        whole, played = oracle.render([*first, *last_round(before.message, turn.prompt_messages)]), ""
        reason = f"rendered anew it would be refused: {refused}"
    else:
        reason = first_difference(played, whole)
    if whole == played:
        check_ordinary_ids(made, turn.prompt_messages, turn.prompt_ids, whole)
        return Cell("✓")
    delta = delta if whole.endswith(delta) else delta.removeprefix(FIRST_ROUND_ONLY)
    assert whole.endswith(delta), f"drift: the template ends with {whole[-len(delta) - 60 :]!r}, the prompt with {delta!r}"
    return Cell("branch", reason)


def first_difference(played: str, whole: str) -> str:
    place = len(os.path.commonprefix([played, whole]))
    return f"{whole[place : place + 24]!r} for {played[place : place + 24]!r}"


def last_round(reply: Message, new: list[Message]) -> list[Message]:
    return [reply.model_copy(update={"content": "", "reasoning": None, "tool_calls": reply.tool_calls[:1]}), *new]


def check_ordinary_ids(made: Renderer, new: list[Message], ids: list[int], whole: str) -> None:
    """The new ids are those of the model's own tokenizer, where no content holds a control string."""
    if not any(list(made.encoder.written_by_template(message.text)) for message in new):
        assert made.tokenizer.encode(whole, add_special_tokens=False)[-len(ids) :] == ids
