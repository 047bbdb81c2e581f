"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM.

::

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentrl.rollout.parsers.base import FoundCall
from agentrl.rollout.parsers.strict_json import Object, read_object, skip_space
from agentrl.rollout.parsers.tagged import TaggedParser, broken
from agentrl.types import ToolCall

_TAGS = _CALL, _CALL_END = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')


class HermesParser(TaggedParser):
    """One JSON object between tags for each call. Tags inside JSON strings are text."""

    name = "hermes"
    form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>, one JSON object between tags'
    how = (
        "write its name and arguments as one JSON object between tags, once for each call:\n"
        '<tool_call>\n{"name": "<name>", "arguments": {...}}\n</tool_call>'
    )
    tags = ("<think>", "</think>", "<tool_response>", "</tool_response>", *_TAGS)
    call_tags = _TAGS

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        body = skip_space(text, place)
        try:
            value = read_object(text, body)
        except ValueError as error:
            return _named(*broken(text, start, body, _TAGS, str(error)))
        after = skip_space(text, value.end)
        if text.startswith(_CALL_END, after):
            end = after + len(_CALL_END)
            call = json_call(value, "arguments")
            call.start, call.end, call.raw = start, end, call.raw or text[body : value.end]
            return [call], end
        if after == len(text) or text.startswith(_CALL, after):
            is_last = after == len(text)
            call = FoundCall(start=start, end=value.end, raw=text[body : value.end], problem=f"no {_CALL_END}")
            call.is_open = is_last
            return _named([call], value.end)
        return _named(*broken(text, start, body, _TAGS, "something follows the object"))

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        name = json.dumps(call.name, ensure_ascii=False)
        return f'{_CALL}\n{{"name": {name}, "arguments": {call.arguments}}}\n{_CALL_END}'


def json_call(value: Object, arguments_key: str) -> FoundCall:
    """The call that an object {"name": ..., arguments_key: {...}} is, yet without a place."""
    name, _ = value.items.get("name", (None, ""))
    arguments, raw = value.items.get(arguments_key, (None, ""))
    if not isinstance(name, str) or not name:
        return FoundCall(start=0, end=0, problem='"name" is no text')
    if not isinstance(arguments, dict):
        return FoundCall(start=0, end=0, name=name, problem=f'"{arguments_key}" is no object')
    return FoundCall(start=0, end=0, name=name, arguments=arguments, raw=raw)


def guess_name(raw: str) -> str:
    """The name in a call that can't be read, for the report."""
    guess = _NAME.search(raw)
    return guess[1] if guess else ""


def _named(calls: list[FoundCall], end: int) -> tuple[list[FoundCall], int]:
    for call in calls:
        call.name = guess_name(call.raw)
    return calls, end
