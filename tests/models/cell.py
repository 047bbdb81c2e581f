"""One cell of the matrix: a template plays a scenario through the real AgentLoop, and every id is accounted for."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.config import LimitsConfig, SamplingConfig
from agentrl.environment import Environment, EnvironmentConfig, EnvironmentContext, StepResult, tool_messages
from agentrl.errors import TemplateError
from agentrl.rollout.context import num_common
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.testing.endpoint import Reply, ScriptedEndpoint
from agentrl.testing.memory import MemoryRecorder
from agentrl.tool import ToolResult, tool
from agentrl.types import Artifacts, Grade, Message, Sample, StopReason, Task, ToolCall, Trajectory, Turn
from tests.models.checks import (
    check_control,
    check_ids,
    check_messages,
    check_one_line,
    check_rows,
    continues,
    num_control,
)
from tests.models.families import renderer, rerendering
from tests.models.oracle import (
    FIRST_ROUND_ONLY,
    HISTORY_ENDS,
    ONE_CALL,
    STOPS_AFTER_CALL,
    Oracle,
    OracleRefused,
)
from tests.models.replies import Script, awkward_ids, reply_text
from tests.models.scenarios import Scenario

THINKING = re.compile(
    r"<think>.*?</think>|<\|channel>thought.*?<channel\|>|<\|channel\|>analysis.*?<\|start\|>assistant", re.DOTALL
)
"""As Qwen and others write it, Gemma 4, and gpt-oss."""
Mark = Literal["✓", "branch", "refused"]


@dataclass(frozen=True)
class Cell:
    """How a template and a scenario get on."""

    mark: Mark
    reason: str = ""


@tool
def look(at: str) -> str:
    """Look at a thing."""
    raise NotImplementedError  # replaced in each episode


SPECS = [look.spec()]


async def play(name: str, scenario: Scenario, endpoint: ScriptedEndpoint, client: HttpClient) -> Cell:
    """Raises AssertionError for anything that isn't exact, a branch that the template asks for, or a refusal."""
    made = renderer(name, "action:look.at" if scenario.as_text else "auto")
    scenario = scenario.with_control("".join(made.encoder.control))
    tools = SPECS if scenario.uses_tools else []
    if reason := refusal(name, bool(tools)):
        return Cell("refused", reason)
    oracle = Oracle(name, made.tokenizer, [] if made.tools_in_system else tools)
    script = write_script(name, scenario, made, oracle)
    endpoint.script = lambda seen: script.replies[seen.turn]
    stage = Stage(name, scenario, script, oracle)
    cell = await play_in_mode(stage, made, endpoint, client)
    await play_in_mode(stage, rerendering(made), endpoint, client)
    return cell


@dataclass(frozen=True)
class Stage:
    """All that a cell needs besides the renderer."""

    name: str
    scenario: Scenario
    script: Script
    oracle: Oracle


async def play_in_mode(stage: Stage, made: Renderer, endpoint: ScriptedEndpoint, client: HttpClient) -> Cell:
    endpoint.seen.clear()
    recorder = MemoryRecorder()
    sample = await run(stage.scenario, made, client, recorder)
    trajectory = sample.trajectory
    check_ids(trajectory, recorder, endpoint, stage.script)
    check_rows(sample)
    check_control(trajectory, made)
    if trajectory.stop_reason is StopReason.ENV_ERROR:
        return Cell("refused", why_refused(trajectory))
    is_cut = stage.scenario.ending == "cut"
    expected = StopReason.TURN_LENGTH if is_cut else StopReason.COMPLETED
    assert trajectory.stop_reason is expected, trajectory.error
    if not is_cut:
        check_messages(trajectory, stage.script)
    if made.mode == "append" and stage.scenario.history is None:
        check_one_line(trajectory)
    return compare(stage, trajectory, made)


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
    assert "TemplateError: the chat template of" in error, error
    return error


# ---- the episode ----


def write_script(name: str, scenario: Scenario, made: Renderer, oracle: Oracle) -> Script:
    script, history, results = Script(), list(scenario.first), iter(scenario.results)
    for index, reply in enumerate(map(with_ids, itertools.count(), scenario.replies)):
        reply = reply.model_copy(update={"tool_calls": reply.tool_calls[: 1 if name in STOPS_AFTER_CALL else None]})
        shown = in_content(made, reply) if made.template.calls_in_content else reply
        answers = scenario.answers[index] if index < len(scenario.answers) else []
        new = [*tool_messages(reply, [ToolResult(content=next(results)) for _ in reply.tool_calls]), *answers]
        text = reply_text(name, oracle, made, history, shown, new)
        ids = awkward_ids(made, text)
        assert ids[-1] in made.stop_ids
        script.messages.append(reply)
        script.replies.append(spoil(scenario, index, ids, made))
        history = [*(scenario.history if scenario.history and index == 0 else [*history, shown]), *new]
    return script


def with_ids(turn: int, reply: Message) -> Message:
    """With the ids that the loop gives to calls."""
    calls = [
        ToolCall(id=f"call_{turn}_{index}", name=call.name, arguments=call.arguments)
        for index, call in enumerate(reply.tool_calls)
    ]
    return reply.model_copy(update={"tool_calls": calls})


def in_content(made: Renderer, reply: Message) -> Message:
    return reply.model_copy(update={"content": made.parser.write(reply), "tool_calls": []})


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


async def run(scenario: Scenario, made: Renderer, client: HttpClient, recorder: MemoryRecorder) -> Sample:
    loop = AgentLoop(
        env_class=environment(scenario),
        env_config=EnvironmentConfig(),
        sampler=lambda env, trajectory: EngineSampler(client),
        renderer=made,
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
            answers = itertools.chain(*scenario.answers[self.num_replies - 1 :][:1])
            history = scenario.history if self.num_replies == 1 else None
            return StepResult(messages=[*tool_messages(reply, results), *answers], history=history)

        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=1.0)

    return Played


# ---- against the template ----


def compare(stage: Stage, trajectory: Trajectory, made: Renderer) -> Cell:
    """✓: the template's own rendering of the whole conversation, at every turn. Else it must be the template's doing.

    The renderings are compared from the first message on: before it stands what describes the tools.
    """
    cell, history = Cell("✓"), list[Message]()
    for turn in trajectory.turns:
        is_replaced = stage.scenario.history is not None and turn.index == 1
        history = [*([] if is_replaced else history), *turn.prompt_messages]
        if turn.index > 0:
            found = compare_turn(stage, made, trajectory, turn, history)
            cell = cell if found.mark == "✓" else found
        history.append(as_shown(stage, made, turn.message))
    return Cell("branch", "the environment replaces the conversation") if stage.scenario.history else cell


def as_shown(stage: Stage, made: Renderer, reply: Message) -> Message:
    """The calls as part of the text, where agentrl or the model writes them so."""
    in_text = made.template.calls_in_content and made.template.forms.results_of_text
    in_text = in_text or (stage.name in ONE_CALL and len(reply.tool_calls) > 1)
    return in_content(made, reply) if in_text else reply


def compare_turn(stage: Stage, made: Renderer, trajectory: Trajectory, turn: Turn, history: list[Message]) -> Cell:
    first = history[0].text
    context, delta = made.decode(trajectory.context(turn.index)), made.decode(turn.prompt_ids)
    played = context[context.index(first) :]
    try:
        whole = stage.oracle.render(history)
    except OracleRefused as refused:  # the whole conversation, but perhaps not what follows the last reply
        whole = stage.oracle.render([history[0], *last_round(trajectory.turns[turn.index - 1], turn)])
        reason = f"the template refuses to render it anew: {refused}"
    else:
        whole = whole[whole.index(first) :]
        reason = difference(played, whole, made)
    if whole == played:
        if continues(trajectory, turn):
            check_ordinary_ids(made, turn, whole)
        return Cell("✓")
    assert made.mode == "append", f"not what the template writes: {reason}"
    check_tail(stage, made, trajectory.turns[turn.index - 1], delta, whole)
    return Cell("branch", reason)


def check_tail(stage: Stage, made: Renderer, before: Turn, delta: str, whole: str) -> None:
    """What follows the reply is what the template writes there, though it writes the reply otherwise."""
    if not whole.endswith(delta) and delta.startswith(FIRST_ROUND_ONLY):
        delta = delta.removeprefix(FIRST_ROUND_ONLY)
        whole = whole.removesuffix(delta).rstrip() + delta
    assert whole.endswith(delta), f"drift: the template ends with {whole[-len(delta) - 60 :]!r}, not with {delta!r}"
    if stage.scenario.ending == "stop":
        ends, sampled = end_strings(made), made.decode(before.sampled_ids[-1:])
        opens = delta.startswith(ends) and not delta.startswith(sampled)  # the model stopped on something else
        assert opens or whole.removesuffix(delta).endswith(ends), f"drift: no end before {delta!r}"


def difference(played: str, whole: str, made: Renderer) -> str:
    """What the template did to the replies, in words where there are some."""
    ends = re.compile("|".join(map(re.escape, end_strings(made))))
    for what, normal in (
        ("white space", without_space),
        ("thinking is dropped or written in another way", lambda text: without_space(THINKING.sub("", text))),
        ("another end token", lambda text: without_space(ends.sub("<end>", THINKING.sub("", text)))),
    ):
        if normal(played) == normal(whole):
            return what
    played, whole = normal(played), normal(whole)
    place = num_common(played, whole)
    if ">" not in played[played.rfind("<", 0, place) : place]:  # not in the middle of a tag
        place = played.rfind("<", 0, place)
    return f"`{whole[place : place + 24]}` for `{played[place : place + 24]}`"


def end_strings(made: Renderer) -> tuple[str, ...]:
    return *(made.decode([id]) for id in made.stop_ids), *HISTORY_ENDS


def without_space(text: str) -> str:
    return "".join(text.split())


def last_round(before: Turn, turn: Turn) -> list[Message]:
    update = {"content": "", "reasoning": None, "tool_calls": before.message.tool_calls[:1]}
    return [before.message.model_copy(update=update), *turn.prompt_messages]


def check_ordinary_ids(made: Renderer, turn: Turn, whole: str) -> None:
    """The new ids are those of the model's own tokenizer, where no content holds a control string."""
    if not any(num_control(made, message.text) for message in turn.prompt_messages):
        ids = made.tokenizer.encode(whole, add_special_tokens=False)
        assert ids[-len(turn.prompt_ids) :] == turn.prompt_ids
