"""Calls are read exactly as emitted; what can't be read is reported and never run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.parsers import ParsedReply
from agentrl.rollout.parsers.checking import bad_call_observation as observation
from agentrl.rollout.parsers.hermes import HermesParser
from agentrl.rollout.parsers.sampled import TokenPlaces
from agentrl.types import CallStatus, Message, ParsedCall, ToolCall
from tests.rollout.templates import TOOLS, renderer

GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def parse(text: str, truncated: bool = False) -> ParsedReply:
    return HermesParser().parse_text(text, tools=TOOLS, truncated=truncated)


def bad_call_observation(call: ParsedCall, tools: Any, max_chars: int) -> str:
    return observation(call, tools, max_chars, HermesParser.form)


def call_text(arguments: str, name: str = "delete") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def statuses(text: str, truncated: bool = False) -> list[CallStatus]:
    return [call.status for call in parse(text, truncated).calls]


def test_a_reply_is_split_into_reasoning_content_and_calls() -> None:
    reply = parse(f"<think>\nadd them\n</think>\n\nLet me see.\n{GOOD}\n{GOOD}")
    assert reply.message.reasoning == "add them"
    assert reply.message.content == "Let me see."
    assert reply.message.tool_calls == [call.call for call in reply.calls]
    assert [call.call.id for call in reply.calls] == ["call_0", "call_1"]
    assert reply.calls[0].call.arguments == '{"a": 1, "b": 2}'
    assert reply.calls[0].arguments == {"a": 1, "b": 2}
    assert statuses(GOOD) == [CallStatus.OK]


def test_a_reply_without_calls_is_its_text_exactly() -> None:
    assert parse("  two\n") == ParsedReply(message=Message(role="assistant", content="  two\n"), calls=[])


@pytest.mark.parametrize(
    "arguments",
    [
        *('{"path": "a"', "null", "[]", "3", '"{}"', '{"path": NaN}', '{"path": Infinity}', '{"path": 1e999}', ""),
        *('{"path": "a", "path": "b"}', "{'path': 'a'}", '{"path": "a"} {}', "[" * 100_000, '{"path": "a\nb"}'),
    ],
)
def test_B03_bad_arguments_are_never_run_as_an_empty_object(arguments: str) -> None:
    (call,) = parse(call_text(arguments)).calls
    assert call.status is CallStatus.INVALID_JSON
    assert call.arguments is None and call.error


@pytest.mark.parametrize(
    "body",
    [
        *("null", "[]", "3", "", "add(1, 2)", '{"arguments": {}}', '{"name": 3, "arguments": {}}', "{}"),
        *('{"name": "delete"}', '{"name": "", "arguments": {}}', '{"name": "a", "name": "delete", "arguments": {}}'),
    ],
)
def test_B03_a_body_that_is_no_call_is_invalid(body: str) -> None:
    (call,) = parse(f"<tool_call>{body}</tool_call>").calls
    assert call.status is CallStatus.INVALID_JSON and call.arguments is None


def test_B03_the_observation_shows_the_schema_and_at_most_n_characters_of_the_model() -> None:
    (call,) = parse(call_text('{"path": "' + "z" * 500)).calls
    text = bad_call_observation(call, TOOLS, 20)
    assert json.dumps(TOOLS["delete"].schema) in text
    assert "not run" in text and text.count("z") <= 20
    assert "Your text: {" in text


def test_B03_an_unknown_tool_is_answered_with_the_known_names() -> None:
    (call,) = parse(call_text("{}", name="q" * 300)).calls
    assert call.status is CallStatus.UNKNOWN_TOOL
    text = bad_call_observation(call, TOOLS, 30)
    assert "Known tools: add, delete" in text and text.count("q") == 30


def test_B03_arguments_that_do_not_fit_are_answered_with_the_fields() -> None:
    (call,) = parse(call_text('{"a": "z", "b": 2, "qqqqqqqqqqqqqqqqqqqq": 1}', name="add")).calls
    assert call.status is CallStatus.INVALID_ARGUMENTS and call.arguments is None
    assert call.error is not None and call.error.startswith("a: ")
    assert bad_call_observation(call, TOOLS, 8).count("q") < 9
    assert "a: Input should be" in bad_call_observation(call, TOOLS, 500)
    assert "Your text" not in bad_call_observation(call, TOOLS, 0)


def test_one_bad_call_does_not_lose_the_good_ones() -> None:
    bad = "<tool_call>{oops</tool_call>"
    assert statuses(f"{bad}{GOOD}{bad}{GOOD}") == [CallStatus.INVALID_JSON, CallStatus.OK] * 2
    assert statuses(f'<tool_call>{{"name": "add"\n{GOOD}') == [CallStatus.INVALID_JSON, CallStatus.OK]
    assert statuses(f'<tool_call>{{"name": "add", "arguments": {{}}}}{GOOD}') == [
        CallStatus.INVALID_JSON,
        CallStatus.OK,
    ]


def test_an_open_call_is_truncated_only_where_the_reply_was_cut() -> None:
    for end in range(len("<tool_call>"), len(GOOD)):
        assert statuses(GOOD + GOOD[:end], truncated=True)[1:] == [CallStatus.TRUNCATED]
        assert statuses(GOOD + GOOD[:end])[1:] == [CallStatus.INVALID_JSON]
    assert statuses("<tool_call>{oops</tool_call>" + GOOD, truncated=True)[0] is CallStatus.INVALID_JSON


@pytest.mark.parametrize(
    "text",
    [f"<think>{GOOD}</think>done", f"<think>{GOOD}", f"a<think>b</think><think>{GOOD}</think>", f"{GOOD}</think>"],
)
def test_nothing_inside_a_think_block_is_a_call(text: str) -> None:
    reply = parse(text)
    assert reply.calls == [] and "tool_call" in (reply.message.reasoning or "")


def test_a_prompt_may_have_opened_the_think_block() -> None:
    inside = HermesParser(in_think=True)
    assert inside.parse_text(GOOD, tools=TOOLS).calls == []
    reply = inside.parse_text(f"hm</think>{GOOD}", tools=TOOLS)
    assert (reply.message.reasoning, len(reply.calls)) == ("hm", 1)


def test_tags_inside_json_strings_are_text() -> None:
    arguments = json.dumps({"path": f"</tool_call><think>{GOOD}"})
    (call,) = parse(call_text(arguments)).calls
    assert call.status is CallStatus.OK and call.call.arguments == arguments
    (call,) = parse(call_text('{"path": "</think>"}')).calls
    assert call.arguments == {"path": "</think>"}


def test_A02_spans_are_over_the_sampled_ids() -> None:
    made = renderer("qwen3")
    text = f"\U0001f600é {GOOD} and {GOOD}\U0001f600"
    for split in (1, 3, 1000):
        pieces = [text[i : i + split] for i in range(0, len(text), split)]
        ids = [id for piece in pieces for id in made.encode_text(piece)] + [2]
        calls = HermesParser().parse(ids, made.decode, tools=TOOLS, stop_ids=made.stop_ids, call_prefix="t4_").calls
        assert [call.call.id for call in calls] == ["t4_0", "t4_1"]
        for call in calls:
            start, end = call.span
            around = made.decode(ids[start:end])
            assert GOOD in around and len(around) < len(GOOD) + 3
            assert GOOD not in made.decode(ids[start + 1 : end]) and GOOD not in made.decode(ids[start : end - 1])


def test_A08_the_stop_id_is_no_text() -> None:
    made = renderer("qwen3")
    ids = [*made.encode_text("done"), 2]
    assert HermesParser().parse(ids, made.decode, tools={}, stop_ids=made.stop_ids).message.content == "done"
    assert (
        HermesParser().parse(ids[:-1], made.decode, tools={}, stop_ids=made.stop_ids, truncated=True).message.content
        == "done"
    )
    # A server that stopped by a string, or that left the stop id out: nothing of the text is lost.
    assert HermesParser().parse(ids[:-1], made.decode, tools={}, stop_ids=made.stop_ids).message.content == "done"
    assert HermesParser().parse([], made.decode, tools={}, stop_ids=made.stop_ids).message.content == ""


def test_a_span_covers_tokens_that_hold_parts_of_characters() -> None:
    symbols = [b"a\xf0", b"\x9f", b"\x98\x80<", b"tool", b"_call>x"]

    def decode(ids: Any) -> str:
        return b"".join(symbols[id] for id in ids).decode("utf-8", "replace")

    text = decode(range(5))
    places = TokenPlaces(range(5), decode, text, {})
    assert places.span(2, 13) == (2, 5)
    assert places.span(1, 2) == (2, 3)
    assert places.span(0, 1) == (0, 1)


@pytest.mark.parametrize("num_before", [0, 1, 61, 62, 63, 64, 65, 200])
def test_spans_hold_in_long_replies_whether_or_not_chunks_cut_a_character(num_before: int) -> None:
    made = renderer("qwen3")
    emoji = made.encode_text("\U0001f600")
    assert len(emoji) > 1
    for filler in (made.encode_text("x"), emoji):
        before = (filler * num_before)[: num_before // len(filler) * len(filler)]
        ids = before + made.encode_text(GOOD) + filler * 100
        (call,) = HermesParser().parse(ids, made.decode, tools=TOOLS, stop_ids=made.stop_ids, truncated=True).calls
        assert call.span == (len(before), len(before) + len(made.encode_text(GOOD)))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "é", "\U0001f600", "x y", GOOD]), min_size=1), st.data()
)
def test_a_tag_that_was_sampled_has_the_place_that_decoding_finds(pieces: list[str], data: st.DataObject) -> None:
    made = renderer("qwen3")
    control = {tag: id for tag, id in made.encoder.control.items() if tag in HermesParser.tags}
    is_sampled = data.draw(st.lists(st.booleans(), min_size=len(pieces), max_size=len(pieces)))
    ids: list[int] = []
    for piece, sampled in zip(pieces, is_sampled, strict=True):
        ids += made.encoder.encode(piece) if sampled else made.encode_text(piece)
    text = made.decode(ids)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    spans = [match.span() for match in re.finditer("<tool_call>.*?</tool_call>", text)]
    for place in [(start, end), *spans]:
        decoded = TokenPlaces(ids, made.decode, text, {}).span(*place)
        assert TokenPlaces(ids, made.decode, text, control).span(*place) == decoded


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "\n",
        GOOD,
        '{"name": "add", "arguments": ',
        "{",
        "}",
        '"',
        "é",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300)
@given(TEXTS, st.booleans(), st.booleans())
def test_any_text_is_parsed(text: str, truncated: bool, in_think: bool) -> None:
    reply = HermesParser(in_think=in_think).parse_text(text, tools=TOOLS, truncated=truncated)
    place = 0
    for call in reply.calls:
        start, end = call.span
        assert place <= start < end <= len(text)
        assert text.startswith("<tool_call>", start)
        assert (call.arguments is not None) == (call.status is CallStatus.OK)
        assert bad_call_observation(call, TOOLS, 10) if call.arguments is None else call.call.name in TOOLS
        place = end


@settings(deadline=None, max_examples=60)
@given(TEXTS.filter(lambda text: text.isprintable()), st.booleans())
def test_spans_over_ids_are_within_bounds(text: str, truncated: bool) -> None:
    made = renderer("qwen3")
    ids = [id for character in text for id in made.encode_text(character)] + ([] if truncated else [2])
    for call in HermesParser().parse(ids, made.decode, tools=TOOLS, stop_ids=made.stop_ids, truncated=truncated).calls:
        start, end = call.span
        assert 0 <= start < end <= len(ids)
        assert made.decode(ids[start:end]).startswith("<tool_call>")


@settings(deadline=None, max_examples=200)
@given(TEXTS.filter(bool), st.lists(st.dictionaries(TEXTS, JSON, max_size=3), min_size=1, max_size=3))
def test_a_written_call_is_read_back(name: str, arguments: list[dict[str, Any]]) -> None:
    calls = [
        ToolCall(id=f"call_{i}", name=name, arguments=json.dumps(each, ensure_ascii=False))
        for i, each in enumerate(arguments)
    ]
    reply = parse(HermesParser().write(Message(role="assistant", content="", tool_calls=calls)))
    assert reply.message.tool_calls == calls
