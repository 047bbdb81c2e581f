"""Texts become what the schema says, and only that."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from agentrl.rollout.parsers import make_parser
from agentrl.rollout.parsers.coercion import typed
from agentrl.tool import tool
from agentrl.types import CallStatus
from tests.rollout.parsers.builders import TOOLS, Recording


class Point(BaseModel):
    """A schema that is referred to."""

    x: int


@tool
def edit(
    edits: list[dict[str, Any]],
    day: str = "",
    count: int = 0,
    limit: int | None = None,
    note: str | None = None,
    mode: Literal["fast", "slow"] = "fast",
    level: Literal[1, 2] = 1,
    point: Point | None = None,
) -> str:
    """Edit."""
    return ""


def value(type: str | None, text: str) -> Any:
    """The value, or the problem as ValueError."""
    values, problems = typed({"it": text}, {"properties": {"it": {"type": type} if type else {}}})
    if problems:
        assert problems.startswith("it: should be ") and values == {"it": text}
        raise ValueError(problems)
    return values["it"]


@pytest.mark.parametrize("text", ["007", "2024-05-01", "1e5", "None", "null", "true", "[1]", " 5 ", '"5"', ""])
@pytest.mark.parametrize("type", ["string", None])
def test_b07_declared_strings_are_untouched(type: str | None, text: str) -> None:
    assert value(type, text) == text


@pytest.mark.parametrize(
    ("type", "text", "expected"),
    [
        ("integer", "5", 5),
        ("integer", " -12\n", -12),
        ("integer", "7.0", 7),
        ("number", "7.0", 7.0),
        ("number", "1e5", 1e5),
        ("number", "3", 3),
        ("boolean", "True", True),
        ("boolean", "false", False),
        ("null", "None", None),
        ("null", "null", None),
        ("array", "[1, true, null]", [1, True, None]),
        ("object", '{"a": "b"}', {"a": "b"}),
    ],
)
def test_b07_other_types_are_read_as_json(type: str, text: str, expected: Any) -> None:
    got = value(type, text)
    assert (got, got.__class__) == (expected, expected.__class__)


@pytest.mark.parametrize(
    ("type", "text"),
    [
        *(("integer", text) for text in ("seven", "7.5", "05", "+5", "1_000", "5 5", "", "True", "1e999", "0x10")),
        *(("number", text) for text in ("NaN", "Infinity", "1.", ".5", "true")),
        *(("boolean", text) for text in ("yes", "1", "TRUE", "'true'")),
        *(("array", text) for text in ("[1,]", "['a']", "[True]", "(1, 2)", "{}", "[1] [2]", "[" * 100_000)),
        *(("object", text) for text in ("{'a': 1}", '{"a": 1, "a": 2}', "[]", '{"a": 1,}')),
    ],
)
def test_b07_b11_what_does_not_fit_is_refused(type: str, text: str) -> None:
    with pytest.raises(ValueError, match="should be"):
        value(type, text)


def call(**texts: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function=edit>\n{parameters}</function>\n</tool_call>"


def test_b06_arrays_of_objects_with_json_literals() -> None:
    parser = make_parser("qwen3_coder")
    text = call(edits='[{"path":"a","all":true,"old":null}]')
    (read,) = parser.parse_text(text, tools={"edit": edit}).calls
    assert read.status is CallStatus.OK and read.arguments is not None
    assert read.arguments["edits"] == [{"path": "a", "all": True, "old": None}]


def test_b07_an_argument_of_the_wrong_type_is_told_to_the_model() -> None:
    parser = make_parser("qwen3_coder")
    (read,) = parser.parse_text(call(edits="[]", count="seven"), tools={"edit": edit}).calls
    assert read.status is CallStatus.INVALID_ARGUMENTS and read.arguments is None
    assert read.error is not None and read.error.startswith("count: should be integer")
    (read,) = parser.parse_text(call(edits="[]", count="7.0", day="2024-05-01"), tools={"edit": edit}).calls
    assert read.arguments is not None and (read.arguments["count"], read.arguments["day"]) == (7, "2024-05-01")


def test_unions_enums_and_references_are_followed() -> None:
    values, problems = typed(
        {"limit": "None", "note": "None", "mode": "fast", "level": "2", "point": '{"x": 1}'}, edit.schema
    )
    assert problems == ""
    assert values == {"limit": None, "note": "None", "mode": "fast", "level": 2, "point": {"x": 1}}
    assert typed({"limit": "many"}, edit.schema)[1].startswith("limit: should be integer or null")
    assert typed({"a": "1"}, {"additionalProperties": {"type": "integer"}}) == ({"a": 1}, "")
    looping = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}
    assert typed({"a": "1"}, looping) == ({"a": "1"}, "")


def test_an_unknown_tool_keeps_its_texts() -> None:
    (read,) = (
        make_parser("glm")
        .parse_text("<tool_call>nothing<arg_key>a</arg_key><arg_value>5</arg_value></tool_call>", tools=TOOLS)
        .calls
    )
    assert (read.status, read.call.arguments) == (CallStatus.UNKNOWN_TOOL, '{"a": "5"}')


def test_action_numbers_may_have_white_space_around_them() -> None:
    game = Recording("action")
    game.schema = {"type": "object", "properties": {"action": {"type": "integer"}}}
    (read,) = make_parser("action").parse_text("<action> 3 </action>", tools={"action": game}).calls
    assert read.arguments == {"action": 3}
