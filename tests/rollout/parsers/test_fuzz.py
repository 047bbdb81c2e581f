"""A hundred thousand calls with something wrong in them: nothing raises, and nothing runs that isn't written there."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.control import clean
from agentrl.rollout.parsers import PARSERS, ParsedReply, ToolCallParser, make_parser
from agentrl.rollout.parsers.checking import bad_call_observation
from agentrl.types import CallStatus, ToolCall
from tests.rollout.parsers.builders import NAMES, ONE_TOOL, TOOLS, as_call, by_id, calling, encoder
from tests.rollout.parsers.reference import REFERENCES

NUM_MUTATIONS = 100_000
MUTATIONS_EACH = 10
"""Of one reply: to make one takes longer than to read it."""
IDS_SHARE = 20
"""One in so many mutations is read from ids, too."""
TEXT_FORMS = ("qwen3_coder", "glm", "muse", *ONE_TOOL)
"""Formats that carry texts, which the schema types."""
LISTS = ("mistral", "lfm2", "pythonic", "llama3", "muse")
"""Formats in which a call may be a part of a list."""
PIECES = [
    *("'", '"', "\\", "\\\\", "{", "}", "[", "]", "(", ")", ",", ":", "=", ";", "\n", "\r", "\0", "\x07", "\u2028"),
    *("True", "None", "true", "null", "1", "-", ".", "e9", "007", "NaN", " ", "é", "\U0001f600", "#", "//", "```"),
    *('"name"', '"arguments"', "probe", "other", "missing", "<think>", "</think>", "<tool_response>", "\\u0000"),
]
TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
VALUES: dict[str, list[Any]] = {
    "string": ["", "5", "a b", "echo ${x", '"\\"}{"', "it's", "line\nline", "</tool_call>", "é\U0001f600"],
    "integer": [0, 7, -12],
    "number": [1.5, -2e-7, 3],
    "boolean": [True, False],
    "null": [None],
    "array": [[], [1, "a", {"b": None}], [[True]]],
    "object": [{}, {"c": {"d": [1.5, "x"]}}],
}


def some_reply(parser: ToolCallParser, generator: random.Random) -> str:
    """Up to three calls with arguments that the format can express."""
    while True:
        calls = []
        for i in range(generator.choice((1, 1, 2, 3))):
            if parser.name in ONE_TOOL:
                tool, key = ONE_TOOL[parser.name]
                arguments = {key: generator.choice(VALUES["string"])}
            else:
                tool = generator.choice(("probe", "probe", "other"))
                keys = generator.sample(list(VALUES), generator.randint(0, 4))
                arguments = {key: generator.choice(VALUES[key]) for key in keys}
            calls.append(as_call(arguments, name=tool, id=f"call_{i}"))
        try:
            return parser.write(calling(*calls))
        except ValueError:
            continue


def mutate(text: str, tags: tuple[str, ...], generator: random.Random) -> str:
    """One to three edits: characters or stretches lost, doubled, moved, replaced; quotes swapped; tags put in."""
    for _ in range(generator.choice((1, 1, 2, 3))):
        at, length = generator.randint(0, len(text)), generator.choice((1, 1, 2, 5, 20))
        before, piece, after = text[:at], text[at : at + length], text[at + length :]
        kind = generator.randrange(7)
        if kind == 0:
            text = before + after
        elif kind == 1:
            text = before + piece + piece + after
        elif kind == 2:
            text = before
        elif kind == 3:
            text = before + generator.choice(tags or ("",)) + piece + after
        elif kind == 4:
            text = after + before + piece
        elif kind == 5:
            text = before + piece.replace('"', "'").replace("true", "True").replace("null", "None") + after
        else:
            text = before + generator.choice(PIECES) + (piece if generator.random() < 0.5 else "") + after
    return text


def check_meaning(name: str, reply: ParsedReply, text: str) -> int:
    """Every call that may run is what another, strict reader finds in its span. How many there are."""
    num_ok = 0
    for call in reply.calls:
        assert (call.arguments is not None) == (call.status is CallStatus.OK), (call, text)
        if call.arguments is None:
            assert bad_call_observation(call, TOOLS, 50, PARSERS[name].form)
            continue
        num_ok += 1
        tool, wanted = REFERENCES[name](text[slice(*call.span)])
        assert tool == call.call.name and tool in TOOLS, text
        if name in TEXT_FORMS:
            wanted = {key: _of_its_type(key, value) for key, value in wanted.items()}
        assert json.dumps(call.arguments) == json.dumps(wanted), text
    return num_ok


def _of_its_type(name: str, text: str) -> Any:
    """What a text stands for where the parameter is named after its JSON type."""
    if name not in VALUES or name == "string":
        return text
    value = {"True": True, "False": False, "None": None}.get(text.strip(" \t\n\r"), ...)
    value = json.loads(text) if value is ... else value
    value = int(value) if name == "integer" and isinstance(value, float) and value.is_integer() else value
    assert type(value) in TYPES[name], (name, text)
    return value


@pytest.mark.parametrize("name", NAMES)
def test_b09_b10_b11_mutated_calls_never_raise_and_never_change_their_meaning(name: str) -> None:
    generator = random.Random(name)
    parser, with_ids, tokenizer = make_parser(name), by_id(name), encoder(name)
    num_mutations = -(-NUM_MUTATIONS // len(NAMES))
    num_ok = num_bad = 0
    for index in range(num_mutations):
        if index % MUTATIONS_EACH == 0:
            whole = some_reply(parser, generator)
        text = mutate(whole, parser.tags, generator)
        reply = parser.parse_text(text, tools=TOOLS, truncated=generator.random() < 0.2)
        ok = check_meaning(name, reply, text)
        num_ok, num_bad = num_ok + ok, num_bad + len(reply.calls) - ok
        place = 0
        for call in reply.calls:
            assert place <= call.span[0] < call.span[1] <= len(text), (reply.calls, text)
            place = call.span[1]
        if index % IDS_SHARE == 0:
            check_ids(name, with_ids, tokenizer.encode(clean(text)), generator)
    told = f"{num_mutations} of {num_mutations * len(NAMES)} mutated replies: {num_ok} calls may run, {num_bad} may not"
    assert num_ok > num_mutations // 10 and (num_bad > num_mutations // 10 or name in ONE_TOOL), told


def check_ids(name: str, parser: ToolCallParser, ids: list[int], generator: random.Random) -> None:
    """Some ids are lost or moved; spans stay within bounds and calls are what their ids say."""
    for _ in range(generator.randrange(3)):
        at = generator.randint(0, len(ids))
        ids = [*ids[:at], *ids[at + 1 :]] if generator.random() < 0.5 else [*ids[at:], *ids[:at]]
    decode = encoder(name).decode
    reply = parser.parse(ids, decode, tools=TOOLS, stop_ids=(), truncated=generator.random() < 0.5)
    for call in reply.calls:
        start, end = call.span
        assert 0 <= start < end <= len(ids)
        if call.arguments and name not in LISTS:
            (again,) = parser.parse(ids[start:end], decode, tools=TOOLS, stop_ids=()).calls
            assert again.arguments == call.arguments


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=150)
@given(data=st.data(), truncated=st.booleans(), in_think=st.booleans())
def test_any_text_is_read(name: str, data: st.DataObject, truncated: bool, in_think: bool) -> None:
    parser = make_parser(name, in_think=in_think)
    pieces = st.sampled_from([*parser.tags, *PIECES, parser.write(calling(*some_calls(name)))])
    text = "".join(data.draw(st.lists(pieces | st.text(max_size=5), max_size=12)))
    reply = parser.parse_text(text, tools=TOOLS, truncated=truncated)
    check_meaning(name, reply, text)
    assert reply.message.tool_calls == [call.call for call in reply.calls]


def some_calls(name: str) -> list[ToolCall]:
    tool, key = ONE_TOOL.get(name, ("probe", "string"))
    return [as_call({key: "a b"}, name=tool)]
