"""What the parsers' tests share: a tool of every type of argument, calls as each format writes them, tokenizers."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from hypothesis import strategies as st

from agentrl.rollout.control import TextEncoder
from agentrl.rollout.parsers import PARSERS, ToolCallParser, make_parser
from agentrl.tool import Tool, ToolContext, ToolResult
from agentrl.types import Message, ToolCall
from tests.rollout.templates import smollm2

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
ONE_TOOL = {"bash": ("bash", "command"), "action": ("action", "action")}
"""Tool and argument of the formats that have only one."""
NAMES = tuple(PARSERS)


class Recording(Tool):
    """Takes arguments of every JSON type, named after it; takes any others too."""

    description = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.schema: dict[str, Any] = {"type": "object", "properties": {t: {"type": t} for t in TYPES}}

    async def call(self, arguments: dict[str, Any], ctx: ToolContext) -> ToolResult:
        raise NotImplementedError


TOOLS: dict[str, Tool] = {name: Recording(name) for name in ("probe", "other", "bash", "action")}


def as_call(arguments: dict[str, Any], name: str = "probe", id: str = "call_0") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def calling(*calls: ToolCall, content: str = "") -> Message:
    return Message(role="assistant", content=content, tool_calls=list(calls))


def written(parser: ToolCallParser, *values: str) -> str:
    """A reply of simple calls in the parser's form, one for each value."""
    tool, argument = ONE_TOOL.get(parser.name, ("probe", "string"))
    return parser.write(calling(*(as_call({argument: value}, name=tool) for value in values)))


@functools.cache
def encoder(name: str) -> TextEncoder:
    """A tokenizer that has an id for every tag of a format."""
    dressed = copy.deepcopy(smollm2())
    dressed.add_tokens(list(PARSERS[name].tags))
    return TextEncoder(dressed.backend_tokenizer)


def by_id(name: str) -> ToolCallParser:
    """A parser whose tags all have ids."""
    return make_parser(name, control=encoder(name).control)


JSON_TEXT = st.text(max_size=12) | st.sampled_from(
    ["", "5", "007", "None", "true", "a\nb", "\n", " x ", "'", '"', "\\", "}{", "${x", "\u2028", "\U0001f600é", "```"]
)
JSON_NUMBER = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | JSON_NUMBER | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), inner),
    max_leaves=6,
)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "string": JSON_TEXT,
    "integer": st.integers(-(10**20), 10**20),
    "number": JSON_NUMBER,
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(JSON_VALUE, max_size=3),
    "object": st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), JSON_VALUE, max_size=3),
}


def arguments_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of the tool that a format can call."""
    if name in ONE_TOOL:
        return JSON_TEXT.map(lambda text: {ONE_TOOL[name][1]: text})
    return st.fixed_dictionaries({}, optional=ARGUMENTS)
