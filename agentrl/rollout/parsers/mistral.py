"""`[TOOL_CALLS]`: Mistral. Two forms, which differ by the version of the tokenizer::

    [TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "VvvODy9mT"}]
    [TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}      or      [TOOL_CALLS]add[CALL_ID]VvvODy9mT[ARGS]{"a": 1, "b": 2}

Nothing closes a call but the end of its JSON, so one that can't be read goes on to the next [TOOL_CALLS].
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentrl.rollout.parsers.base import FoundCall
from agentrl.rollout.parsers.hermes import guess_name, json_call
from agentrl.rollout.parsers.strict_json import read_arguments, read_object, skip_space
from agentrl.rollout.parsers.tagged import TaggedParser
from agentrl.types import ToolCall

_OPEN, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_CARRIED_ID = re.compile(r"[A-Za-z0-9]{9}")
"""The ids that Mistral's templates accept."""


class _MistralParser(TaggedParser):
    think_open, think_close = "[THINK]", "[/THINK]"
    result_tags = ("[TOOL_RESULTS]", "[/TOOL_RESULTS]")
    tags = (think_open, think_close, *result_tags, _OPEN, _ARGS, _ID)
    call_tags = (_OPEN, "")

    def write_broken(self, text: str) -> str:
        return text


class MistralParser(_MistralParser):
    """One JSON list of objects; the elements in front of one that can't be read count."""

    name = "mistral"
    form = '[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]'
    how = f'write all calls as one JSON list:\n{_OPEN}[{{"name": "<name>", "arguments": {{...}}}}]'
    around = (f"{_OPEN}[", ", ", "]")

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        calls: list[FoundCall] = []
        place = skip_space(text, place)
        if not text.startswith("[", place):
            return _rest(text, start, place, "it is no JSON list")
        while True:
            begin = skip_space(text, place + 1)
            try:
                value = read_object(text, begin)
            except ValueError as error:
                rest, end = _rest(text, start, begin, str(error))
                return [*calls, *rest], end
            place = skip_space(text, value.end)
            if not text.startswith((",", "]"), place):
                rest, end = _rest(text, start, begin, "no , or ] follows the object")
                return [*calls, *rest], end
            is_last = text.startswith("]", place)
            call = json_call(value, "arguments")
            call.start, call.end, call.raw = start, place + is_last, call.raw or text[begin : value.end]
            call.id = _carried(value.items.get("id", (None, ""))[0])
            calls.append(call)
            if is_last:
                return calls, place + 1
            start = place

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        id = f', "id": "{call.id}"' if _carried(call.id) else ""
        return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}{id}}}'


class MistralArgsParser(_MistralParser):
    """The name, perhaps an id, and the arguments, between tags of their own."""

    name = "mistral_args"
    form = "[TOOL_CALLS]NAME[ARGS]{...}"
    how = f"write its name and its arguments as one JSON object, once for each call:\n{_OPEN}name{_ARGS}{{...}}"
    around = ("", "", "")
    _head = re.compile(rf"\s*([^\[\]\s{{}}]++)\s*(?:{re.escape(_ID)}([^\[\]]*+))?{re.escape(_ARGS)}\s*")

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        head = self._head.match(text, place)
        if head is None:
            return _rest(text, start, place, "its head can't be read")
        try:
            arguments, raw, end = read_arguments(text, head.end())
        except ValueError as error:
            return _rest(text, start, place, str(error), head[1])
        after = skip_space(text, end)
        if not (after == len(text) or text.startswith(_OPEN, after)):
            return _rest(text, start, place, "something follows the object", head[1])
        id = _carried((head[2] or "").strip())
        return [FoundCall(start=start, end=end, name=head[1], arguments=arguments, raw=raw, id=id)], end

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        id = f"{_ID}{call.id}" if _carried(call.id) else ""
        return f"{_OPEN}{call.name}{id}{_ARGS}{call.arguments}"

    def write_broken(self, text: str) -> str:
        return f"{_OPEN}{text}"


def _carried(id: Any) -> str | None:
    return id if isinstance(id, str) and _CARRIED_ID.fullmatch(id) else None


def _rest(text: str, start: int, begin: int, problem: str, name: str = "") -> tuple[list[FoundCall], int]:
    """A call that can't be read, through to the next one."""
    end = text.find(_OPEN, begin)
    is_open, end = end < 0, len(text) if end < 0 else end
    raw = text[begin:end]
    call = FoundCall(start=start, end=end, name=name or guess_name(raw), raw=raw, problem=problem, is_open=is_open)
    return [call], end
