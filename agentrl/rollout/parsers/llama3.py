"""`{"name": ..., "parameters": {...}}` as the whole reply, or behind <|python_tag|>: Llama 3.1 to 3.3.

Without the tag a reply is a call only if it begins with the object, and its first key is one of a call's: a model may
also answer in JSON. Several calls are joined by semicolons. Nothing may follow the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentrl.rollout.parsers.base import FoundCall
from agentrl.rollout.parsers.hermes import guess_name, json_call
from agentrl.rollout.parsers.strict_json import read_object, skip_space
from agentrl.rollout.parsers.tagged import TaggedParser
from agentrl.types import Message, ToolCall

_TAG = "<|python_tag|>"


class Llama3Parser(TaggedParser):
    """JSON objects with "name" and "parameters"; further keys, such as "type", are ignored."""

    name = "llama3"
    form = '{"name": ..., "parameters": {...}} as the whole reply, several joined by ;'
    how = (
        "reply with nothing but its name and arguments as one JSON object, and with several joined by semicolons for "
        'several calls:\n{"name": "<name>", "parameters": {...}}'
    )
    result_tags = ("<|start_header_id|>", "<|eot_id|>")
    tags = ("<think>", "</think>", *result_tags, _TAG)
    opening = rf"""{re.escape(_TAG)}|(?:\A|(?<=</think>))\s*(?=\{{\s*["']?(?:name|parameters|type|function)["']?\s*:)"""
    around = ("", "; ", "")

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        calls: list[FoundCall] = []
        while True:
            begin = skip_space(text, place)
            try:
                value = read_object(text, begin)
            except ValueError as error:
                return [*calls, _rest(text, start, begin, str(error))], len(text)
            after = skip_space(text, value.end)
            if not (after == len(text) or text.startswith((";", _TAG), after)):
                return [*calls, _rest(text, start, begin, "something follows the object")], len(text)
            call = json_call(value, "parameters")
            call.start, call.end, call.raw = start, value.end, call.raw or text[begin : value.end]
            calls.append(call)
            if not text.startswith(";", after):
                return calls, after
            start, place = after, after + 1

    def write(self, message: Message) -> str:
        calls = self.write_calls(message.tool_calls)
        return f"{message.text}{_TAG}{calls}" if message.text and calls else message.text or calls

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "parameters": {call.arguments}}}'

    def write_broken(self, text: str) -> str:
        return text


def _rest(text: str, start: int, begin: int, problem: str) -> FoundCall:
    """What can't be read goes on to the end of the reply: there is no tag that closes it."""
    raw = text[begin:]
    return FoundCall(start=start, end=len(text), name=guess_name(raw), raw=raw, problem=problem, is_open=True)
