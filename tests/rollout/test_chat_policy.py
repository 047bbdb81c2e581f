"""A policy behind a chat endpoint: what is sent, what is recorded, and that each fault ends as it does elsewhere."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch.rows import build_rows
from agentrl.config_servers import EngineConfig
from agentrl.environment import StepResult
from agentrl.rollout.chat_client import ChatClient
from agentrl.rollout.chat_messages import read_completion
from agentrl.rollout.parsers import make_parser
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ChatSampler
from agentrl.rollout.structured import check_reply
from agentrl.rollout.unrendered import Unrendered
from agentrl.testing.chat import OVERFLOW, ChatFault, ChatSays, Json, Say, ScriptedChat, calling, problem_of
from agentrl.testing.toy import Toy
from agentrl.tool import ToolResult
from agentrl.types import CallStatus, Message, Sample, Sampler, StopReason, ToolCall, Turn
from tests.rollout.loops import call, make_loop, play

RED = ("repeat", '{"text": "red"}')
TOOLS = {tool.name: tool for tool in Toy.tools}


def saying(*replies: str | ChatSays) -> Say:
    """One reply after the other; the last one for all later turns."""
    return lambda messages: replies[min(sum(one["role"] == "assistant" for one in messages), len(replies) - 1)]


async def converse(
    server: ScriptedChat,
    renderer: Renderer | Unrendered | None = None,
    limits: Json | None = None,
    env: type[Toy] = Toy,
    **engine: Any,
) -> Sample:
    config = EngineConfig(**{"api": "chat", "urls": [server.url], "model": "m", "retry_wait_s": 0.01, **engine})
    renderer = renderer or Unrendered()
    async with ChatClient(config) as client:
        sampler = lambda env, trajectory: ChatSampler(client, renderer, env)  # noqa: E731
        return await play(make_loop(renderer, None, env=env, sampler=sampler, **(limits or {})))


def statuses(turn: Turn) -> list[CallStatus]:
    return [parsed.status for parsed in turn.tool_calls]


async def test_messages_and_tools_go_out_in_openais_form_and_text_comes_back() -> None:
    said = calling(RED, ("repeat", ' {"text":\n"blue"}'))
    said.message["reasoning_content"] = "I think."
    async with ScriptedChat(saying(said, "red")) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0
    first, second = server.seen
    assert first["messages"] == [{"role": "user", "content": "Say red for task 0."}]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["repeat", "fail", "sleep", "submit"]
    assert all(tool["type"] == "function" and "properties" in tool["function"]["parameters"] for tool in first["tools"])
    # Raw arguments go back as they came; the reasoning doesn't; each result stands under its call's id.
    assert second["messages"][1] == {"role": "assistant", "content": "", "tool_calls": said.message["tool_calls"]}
    assert second["messages"][2:] == [
        {"role": "tool", "content": "red", "tool_call_id": "call_0_repeat"},
        {"role": "tool", "content": "blue", "tool_call_id": "call_1_repeat"},
    ]
    assert sample.trajectory.turns[0].message.reasoning == "I think."


async def test_without_a_tokenizer_no_ids_are_made_and_the_call_is_on_record() -> None:
    async with ScriptedChat(saying(calling(RED), "red")) as server:
        trajectory = (await converse(server)).trajectory
    assert (trajectory.renderer_mode, trajectory.template_hash) == ("none", "")
    for turn, seen in zip(trajectory.turns, server.seen, strict=True):
        assert turn.sampler is Sampler.TEXT and (turn.prompt_ids, turn.sampled_ids, turn.logprobs) == ([], [], [])
        (engine_call,) = turn.calls
        assert (engine_call.version, engine_call.engine) == (-1, f"m at {server.url}")
        assert engine_call.sampling == {name: seen[name] for name in ("max_tokens", "temperature", "seed")}
    assert not any(len(row) for row in build_rows(Sample(trajectory=trajectory, grade=None)))


async def test_a_tokenizer_counts_and_its_ids_are_never_trained_on(renderer: Renderer) -> None:
    async with ScriptedChat(saying(calling(RED), "red")) as server:
        sample = await converse(server, renderer)
    first, second = sample.trajectory.turns
    assert first.sampled_ids == renderer.encode_text('\nrepeat {"text": "red"}') and "red" in renderer.decode(
        second.prompt_ids
    )
    assert all(map(math.isnan, first.logprobs)) and set(first.versions) == {-1}
    for for_sft in (False, True):
        (row,) = build_rows(sample, for_sft=for_sft)
        assert not row.live and {run.reason for run in row.runs} == {"sampler=text"}


async def test_each_call_of_a_reply_ends_in_its_own_status_and_the_good_one_runs() -> None:
    calls = [("repeat", '{"txt": 1}'), ("functions.repeat", "{}"), ("repeat", '{"text": "a"'), RED]
    async with ScriptedChat(saying(calling(*calls), "red")) as server:
        sample = await converse(server)
    first, second = sample.trajectory.turns
    assert statuses(first) == [
        CallStatus.INVALID_ARGUMENTS, CallStatus.UNKNOWN_TOOL, CallStatus.INVALID_JSON, CallStatus.OK,
    ]  # fmt: skip
    assert first.tool_calls[2].arguments is None
    # Broken arguments go back inside an object: not every server takes them otherwise.
    sent = [one["function"]["arguments"] for one in server.seen[1]["messages"][1]["tool_calls"]]
    assert sent == [*(raw for _, raw in calls[:2]), '{"unreadable": "{\\"text\\": \\"a\\""}', RED[1]]
    observed = [message.text for message in second.prompt_messages]
    assert '"properties"' in observed[0] and "Known tools: fail, repeat" in observed[1] and observed[3] == "red"


@pytest.mark.parametrize("ids", [["", ""], ["same", "same"], [None, None]])
async def test_calls_without_an_id_of_their_own_get_one(ids: list[str | None]) -> None:
    said = calling(RED, ("repeat", '{"text": "blue"}'))
    for one, id in zip(said.message["tool_calls"], ids, strict=True):
        one["id"] = id
    async with ScriptedChat(saying(said, "red")) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0
    made = [parsed.call.id for parsed in sample.trajectory.turns[0].tool_calls]
    assert len(set(made)) == 2 == len(set(made) - {"", None})


async def test_calls_of_a_reply_that_was_cut_are_not_run() -> None:
    cut = ChatSays(message=calling(RED, ("repeat", '{"text": "bl')).message, finish_reason="length")
    async with ScriptedChat(saying(cut)) as server:
        sample = await converse(server)
    (turn,) = sample.trajectory.turns
    assert sample.trajectory.stop_reason is StopReason.TURN_LENGTH and sample.reward == 0.0
    assert statuses(turn) == [CallStatus.NOT_RUN, CallStatus.TRUNCATED]


@pytest.mark.parametrize(
    ("num_tokens", "reason"),
    [(64, StopReason.TURN_LENGTH), (63, StopReason.CONTEXT_OVERFLOW), (None, StopReason.TURN_LENGTH)],
)
async def test_e02_a_reply_that_the_server_cuts_before_its_limit_has_filled_the_window(
    num_tokens: int | None, reason: StopReason
) -> None:
    cut = ChatSays(message={"content": "red and"}, finish_reason="length", num_tokens=num_tokens)
    async with ScriptedChat(saying(cut)) as server:
        sample = await converse(server, limits={"max_turn_tokens": 64})
    assert sample.trajectory.stop_reason is reason and sample.reward == 1.0


@pytest.mark.parametrize(("num_turns", "reward"), [(0, 0.0), (1, 0.0), (2, 1.0)])
async def test_e02_an_overflow_that_only_the_server_knows_is_graded_on_what_there_is(
    num_turns: int, reward: float
) -> None:
    replies: list[str | ChatSays] = [calling(RED), ChatSays(message={**calling(RED).message, "content": "red"})]

    def say(messages: list[Json]) -> str | ChatSays:
        return saying(*replies)(messages)

    async with ScriptedChat(say) as server:
        fault_after(server, num_turns, "overflow")
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW and OVERFLOW in (sample.trajectory.error or "")
    assert len(sample.trajectory.turns) == num_turns and sample.reward == reward
    assert len(server.seen) == num_turns + 1  # it is no fault, so nothing is tried again


def fault_after(server: ScriptedChat, num_turns: int, fault: ChatFault) -> None:
    say = server.say

    def count(messages: list[Json]) -> str | ChatSays:
        said = say(messages)
        if sum(message["role"] == "assistant" for message in messages) == num_turns - 1:
            server.faults.append(fault)
        return said

    server.say = count
    if num_turns == 0:
        server.faults.append(fault)


async def test_the_budget_counts_what_the_server_says_thinking_included() -> None:
    said = ChatSays(message=calling(RED).message, num_tokens=100)
    async with ScriptedChat(saying(said)) as server:
        sample = await converse(server, limits={"max_turn_tokens": 120, "max_episode_tokens": 250, "max_turns": 9})
    assert [body["max_tokens"] for body in server.seen] == [120, 120, 50]
    assert sample.trajectory.stop_reason is StopReason.TOKEN_BUDGET


class Forgetful(Toy):
    """Replaces the conversation after each reply."""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        done = "red" in reply.text
        return StepResult(history=[Message(role="user", content="Say red now.")], messages=[], terminated=done)


async def test_an_environment_may_replace_the_conversation() -> None:
    async with ScriptedChat(lambda messages: "red" if "now" in messages[0]["content"] else "blue") as server:
        trajectory = (await converse(server, env=Forgetful)).trajectory
    assert server.seen[1]["messages"] == [{"role": "user", "content": "Say red now."}]
    assert [(turn.parent, turn.keep, turn.prompt_ids) for turn in trajectory.turns] == [(None, 0, []), (0, 0, [])]


async def test_a_long_observation_is_cut_by_its_characters() -> None:
    flood = calling(("repeat", '{"text": "0123456789", "times": 1000}'))
    async with ScriptedChat(saying(flood, "red")) as server:
        await converse(server, limits={"max_observation_tokens": 64})
    assert len(server.seen[1]["messages"][-1]["content"]) < 4 * 64 + 60


SAID: list[tuple[Json, str]] = [
    ({"content": "red"}, "red"),
    ({"content": None}, ""),
    ({}, ""),
    ({"content": None, "refusal": "I can't say red."}, "I can't say red."),
    ({"content": [{"type": "text", "text": "r"}, {"type": "text", "text": "ed"}]}, "red"),
    ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
    ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"text": "red"}]}, "red"),
]


@pytest.mark.parametrize(("message", "text"), SAID)
async def test_whatever_a_reply_holds_in_place_of_text_is_what_the_agent_said(message: Json, text: str) -> None:
    async with ScriptedChat(saying(ChatSays(message=message, finish_reason=None))) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.COMPLETED
    assert sample.trajectory.turns[0].message.text == text and sample.reward == float("red" in text)


@pytest.mark.parametrize("fault", [408, 429, 500, 503, 529, "garbage", "drop", "no_choices"])
async def test_a_fault_that_may_pass_is_tried_again(fault: int | ChatFault) -> None:
    async with ScriptedChat(saying(calling(RED), "red"), faults=[fault, fault]) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0
    assert len(server.seen) == 2 + 2 and len(sample.trajectory.turns) == 2


async def test_a_server_is_left_alone_for_as_long_as_it_asks() -> None:
    async with ScriptedChat(saying("red"), faults=[429], retry_after_s=0.3) as server:
        started = time.monotonic()
        sample = await converse(server)
    assert sample.reward == 1.0 and time.monotonic() - started >= 0.3


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ([500] * 4, "HTTP 500: broken on purpose"),
        ([400], "HTTP 400: broken on purpose"),
        ([404], "engine.urls ends before /chat/completions"),
        (["garbage"] * 4, "no JSON object"),
        (["no_choices"] * 4, "no chat completion"),
        (["flood"], "longer than 8388608 bytes"),
    ],
)
async def test_a_server_that_fails_is_no_fault_of_the_agents(faults: list[Any], says: str) -> None:
    async with ScriptedChat(saying("red"), faults=faults) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.ENGINE_ERROR and sample.grade is None
    assert says in (sample.trajectory.error or "") and len(server.seen) == len(faults)


async def test_a_wrong_key_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush-hush")
    async with ScriptedChat(saying("red"), key="another") as server:  # its answer holds the key that it got
        error = (await converse(server, key_env="MY_KEY")).trajectory.error or ""
    assert "HTTP 401: wrong key: Bearer ***" in error and "engine.key_env" in error and "hush" not in error


async def test_parameters_that_the_server_doesnt_know_are_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedChat(saying(calling(RED), "red"), unknown=["max_tokens", "temperature"]) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.COMPLETED
    good = [body for body in server.seen if not body.keys() & {"max_tokens", "temperature"}]
    assert len(server.seen) == 2 + 2 and all(body["max_completion_tokens"] == 512 and "seed" in body for body in good)
    # What is on record is what was asked for.
    assert [set(turn.calls[0].sampling) for turn in sample.trajectory.turns] == [{"max_completion_tokens", "seed"}] * 2
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2 and "'max_tokens' is not supported" in warned[0] and "temperature" in warned[1]


@pytest.mark.parametrize(
    "words",
    [
        "Unsupported value: '{}' does not support 0 with this model. Only the default (1) value is supported.",
        "Unexpected fields in the request: {{'{}'}}",
        "Unrecognized request argument supplied: {}",
        "`{}` is deprecated for this model.",
        '[{{"type": "extra_forbidden", "loc": ["body", "{}"], "msg": "Extra inputs are not permitted"}}]',
    ],
)
async def test_servers_say_in_many_ways_that_they_dont_know_a_parameter(words: str) -> None:
    async with ScriptedChat(saying("red"), unknown=["temperature"], unknown_words=words) as server:
        sample = await converse(server)
    assert sample.reward == 1.0 and ["temperature" in body for body in server.seen] == [True, False]


async def test_a_value_that_is_wrong_is_an_error_not_left_out() -> None:
    async with ScriptedChat(saying("red"), faults=[400]) as server:
        sample = await converse(server)
    assert sample.trajectory.stop_reason is StopReason.ENGINE_ERROR and len(server.seen) == 1


KEYS = st.sampled_from(["text", "times", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
RAW = JSON.map(json.dumps) | st.text(max_size=20) | st.sampled_from(['{"text": "a", "text": "b"}', "{", ""])


@given(raw=RAW, name=st.sampled_from([*TOOLS, "nothing"]))
def test_a_call_has_the_status_that_the_same_call_has_in_text(raw: str, name: str) -> None:
    """Where the arguments are one JSON value; in text, what isn't may reach past the call."""
    sent = Message(role="assistant", tool_calls=[ToolCall(id="c", name=name, arguments=raw)])
    (checked,) = check_reply(sent, tools=TOOLS, truncated=False, call_prefix="call_").calls
    assert (checked.arguments is not None) == (checked.status is CallStatus.OK) and checked.call.arguments == raw
    try:
        json.loads(raw)
    except ValueError:
        assert checked.status is CallStatus.INVALID_JSON
        return
    (parsed,) = make_parser("hermes").parse_text(call(name, raw), tools=TOOLS).calls
    assert (parsed.status, repr(parsed.arguments)) == (checked.status, repr(checked.arguments))


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Objects with any of the fields, each as it should be or anything else."""
    return st.fixed_dictionaries({}, optional={name: field | JSON for name, field in fields.items()})


CALLS = st.lists(some(id=st.text(max_size=3), function=some(name=KEYS, arguments=RAW)), max_size=3)
MESSAGE = some(content=st.text(), refusal=st.text(), reasoning=st.text(), tool_calls=CALLS)
CHOICES = st.lists(some(message=MESSAGE, finish_reason=st.just("stop")), max_size=2)


@given(answer=some(choices=CHOICES, usage=some(completion_tokens=st.integers()), error=some(message=st.text())))
def test_no_reply_breaks_the_reader(answer: Json) -> None:
    try:
        completion = read_completion(answer)
    except ValueError as error:
        assert "no chat completion" in str(error)
        return
    check_reply(completion.message, tools=TOOLS, truncated=False, call_prefix="call_")
    assert completion.message.role == "assistant"


def test_the_fake_refuses_what_is_out_of_openais_form() -> None:
    asked: Json = {"role": "user", "content": "hi"}
    called: Json = {"role": "assistant", **calling(RED).message}
    result: Json = {"role": "tool", "content": "red", "tool_call_id": "call_0_repeat"}
    for good in ([asked], [asked, called, result], [asked, called, result, asked]):
        assert problem_of({"messages": good}) is None
    thinking, named = asked | {"reasoning": "hm"}, result | {"name": "repeat"}
    broken: Json = {"role": "assistant", **calling(("repeat", "{broken")).message}
    for bad in ([asked, result], [asked, called, asked], [thinking], [asked, called, named], [asked, broken, result]):
        assert problem_of({"messages": bad}) is not None
    assert problem_of({"messages": [asked], "tools": [{"name": "repeat"}]}) is not None
