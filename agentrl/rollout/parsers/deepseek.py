"""`<｜tool▁call▁begin｜>function<｜tool▁sep｜>name` with the arguments in a JSON fence: DeepSeek V3.

::

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
    ```json
    {"a": 1, "b": 2}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.rollout.parsers.base import FoundCall
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.strict_json import read_arguments
from agentrl.rollout.parsers.tagged import TaggedParser, broken
from agentrl.types import ToolCall

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_HEAD = re.compile(rf"function{_SEPARATOR}([^\n<]++)\n```json\n\s*")
_TAIL = re.compile(rf"\s*\n```{_CALL_END}(?:\s*{_CALLS_END})?")


class DeepseekParser(TaggedParser):
    """Each call between tags, all of them between two more."""

    name = "deepseek"
    form = f"{_CALL}function{_SEPARATOR}NAME\n```json\n{{...}}\n```{_CALL_END}"
    how = (
        "write it like this, with one block from call begin to call end for each call:\n"
        f"{_CALLS}{_CALL}function{_SEPARATOR}name\n```json\n{{...}}\n```{_CALL_END}{_CALLS_END}"
    )
    result_tags = ("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>")
    tags = ("<think>", "</think>", *result_tags, _CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR)
    call_tags = (_CALL, _CALL_END)
    opening = rf"(?:{_CALLS}\s*)?{_CALL}"
    around = (_CALLS, "\n", _CALLS_END)

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        head = _HEAD.match(text, place)
        if head is None:
            return broken(text, start, place, self.call_tags, "its head can't be read")
        try:
            arguments, raw, end = read_arguments(text, head.end())
        except ValueError as error:
            return broken(text, start, place, self.call_tags, str(error))
        tail = _TAIL.match(text, end)
        if tail is None:
            return broken(text, start, place, self.call_tags, "its fence or its tag isn't closed behind the object")
        call = FoundCall(start=start, end=tail.end(), name=plain(head[1]), arguments=arguments, raw=raw)
        return [call], tail.end()

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return f"{_CALL}function{_SEPARATOR}{call.name}\n```json\n{call.arguments}\n```{_CALL_END}"

    def write_broken(self, text: str) -> str:
        return f"{_CALL}{text}{_CALL_END}"
