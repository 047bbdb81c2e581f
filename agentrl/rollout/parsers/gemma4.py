"""`<|tool_call>call:name{key:value}<tool_call|>`: Gemma 4.

::

    <|tool_call>call:add{a:1,label:<|"|>a sum<|"|>,terms:[1,{b:true}]}<tool_call|>

Texts stand between tags, without any escaping; keys stand as they are. Numbers, true, false and null are as in JSON,
and None is null, since the templates write it too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.rollout.parsers.base import FoundCall
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.strict_json import read_value
from agentrl.rollout.parsers.tagged import TaggedParser, broken
from agentrl.types import ToolCall

_TAGS = _CALL, _CALL_END = "<|tool_call>", "<tool_call|>"
_QUOTE = '<|"|>'
_HEAD = re.compile(r"call:([^\s{}<>]++)(?=\{)")
_KEY = re.compile(r"([^\s:{}\[\],<>\"']++):")
_LITERAL = re.compile(r"true|false|null|None|-?\d[\d.eE+-]*+")


class Gemma4Parser(TaggedParser):
    """A notation of its own between tags. The model stops by opening the results."""

    name = "gemma4"
    form = f"{_CALL}call:NAME{{KEY:VALUE,...}}{_CALL_END}, texts between {_QUOTE} and {_QUOTE}"
    how = (
        f"write it like this, once for each call, with texts between {_QUOTE} tags:\n"
        f"{_CALL}call:name{{key:{_QUOTE}text{_QUOTE},other:1}}{_CALL_END}"
    )
    think_open, think_close = "<|channel>thought\n", "<channel|>"
    result_tags = ("<|tool_response>", "<tool_response|>")
    tags = ("<|channel>", think_close, *result_tags, *_TAGS, _QUOTE)
    call_tags = _TAGS
    around = ("", "", "")
    call_end = result_tags[0]

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        head = _HEAD.match(text, place)
        if head is None:
            return broken(text, start, place, _TAGS, "its head can't be read")
        try:
            arguments, end = _read(text, head.end())
        except ValueError as error:
            return broken(text, start, place, _TAGS, str(error))
        except RecursionError:
            return broken(text, start, place, _TAGS, "nested too deeply")
        if not text.startswith(_CALL_END, end):
            return broken(text, start, place, _TAGS, f"no {_CALL_END} follows the arguments")
        end += len(_CALL_END)
        return [FoundCall(start=start, end=end, name=plain(head[1]), arguments=arguments)], end

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return f"{_CALL}call:{call.name}{_written(arguments)}{_CALL_END}"

    def write_broken(self, text: str) -> str:
        return f"{_CALL}{text}{_CALL_END}"


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return f"{_QUOTE}{value}{_QUOTE}" if isinstance(value, str) else json.dumps(value)


def _read(text: str, place: int) -> tuple[Any, int]:
    """The value at `place` and where it ends. Raises ValueError or RecursionError."""
    if text.startswith(_QUOTE, place):
        begin = place + len(_QUOTE)
        end = text.find(_QUOTE, begin)
        if end < 0:
            raise ValueError("a text isn't closed")
        return plain(text[begin:end]), end + len(_QUOTE)
    if text.startswith("{", place):
        return _read_object(text, place)
    if text.startswith("[", place):
        items: list[Any] = []
        return items, _items(text, place, "]", lambda at: _append(items, text, at))
    literal = _LITERAL.match(text, place)
    if literal is None:
        raise ValueError("a value can't be read")
    return None if literal[0] == "None" else read_value(literal[0]), literal.end()


def _read_object(text: str, place: int) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}

    def add(at: int) -> int:
        key = _KEY.match(text, at)
        if key is None or plain(key[1]) in result:
            raise ValueError("a key can't be read or occurs twice")
        result[plain(key[1])], end = _read(text, key.end())
        return end

    return result, _items(text, place, "}", add)


def _append(items: list[Any], text: str, place: int) -> int:
    value, end = _read(text, place)
    items.append(value)
    return end


def _items(text: str, place: int, closing: str, read: Callable[[int], int]) -> int:
    """Read what stands between brackets, joined by commas; where it ends."""
    place += 1
    if text.startswith(closing, place):
        return place + 1
    while True:
        place = read(place)
        if text.startswith(closing, place):
            return place + 1
        if not text.startswith(",", place):
            raise ValueError(f"no , or {closing} follows a value")
        place += 1
