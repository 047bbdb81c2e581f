"""Replies in which thinking, echoed observations and calls stand between tags, and all else is text.

::

    <think>I should add.</think>Let me see.
    <tool_call>…</tool_call>

gives reasoning "I should add.", content "Let me see." and one call. What stands in a think block or between the tags
of an observation, which only the environment writes, is never a call.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from agentrl.rollout.parsers.base import Block, FoundCall, ToolCallParser
from agentrl.types import ToolCall


class _Region(NamedTuple):
    kind: str
    """think, call, or "" for text."""
    start: int
    end: int
    text: str = ""
    calls: Sequence[FoundCall] = ()


class TaggedParser(ToolCallParser):
    """A format that says where a call begins (`opening`) and reads it from there (`calls_at`)."""

    think_close: ClassVar[str] = "</think>"
    result_tags: ClassVar[tuple[str, str]] = ("<tool_response>", "</tool_response>")
    """Between these an environment's answer stands."""
    opening: ClassVar[str]
    """A regular expression for where a call begins."""

    def __init__(self, *, control: Mapping[str, int] | None = None, in_think: bool = False) -> None:
        super().__init__(control=control, in_think=in_think)
        think, result = re.escape(self.think_open), re.escape(self.result_tags[0])
        self._opening = re.compile(f"(?P<think>{think})|(?P<result>{result})|(?P<call>{self.opening})")

    @abstractmethod
    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        """The calls of the block that opens at [start, place), at least one, and where the block ends."""

    @abstractmethod
    def write_call(self, call: ToolCall) -> str:
        """One call. Raises ValueError for what the form can't express."""

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(map(self.write_call, calls))

    def blocks(self, text: str) -> Iterator[Block]:
        end = _find(text, self.think_close, 0) if self.in_think else self._end_of_open_think(text)
        place = 0
        if end is not None:
            yield Block(text[:end].removeprefix(self.think_open), is_thinking=True)
            place = end + len(self.think_close)
        for region in self._regions(text, place):
            yield Block(region.text, is_thinking=region.kind == "think", calls=region.calls)

    def _end_of_open_think(self, text: str) -> int | None:
        """Where a think block ends that the reply didn't begin, so the prompt did; an end tag inside a call is text."""
        if self.think_close not in text:
            return None
        for region in self._regions(text, 0):
            if region.kind == "think":
                return None
            if region.kind == "" and self.think_close in region.text:
                return region.start + region.text.index(self.think_close)
        return None

    def _regions(self, text: str, place: int) -> Iterator[_Region]:
        """From `place` on, in order, without gaps (tags excepted)."""
        while place < len(text):
            opening = self._opening.search(text, place)
            start = opening.start() if opening else len(text)
            if start > place:
                yield _Region("", place, start, text[place:start])
            if opening is None:
                return
            region = self._region(text, opening)
            yield region
            place = region.end

    def _region(self, text: str, opening: re.Match[str]) -> _Region:
        start, place = opening.span()
        if opening.lastgroup == "think":
            end = _find(text, self.think_close, place)
            return _Region("think", start, end + len(self.think_close), text[place:end])
        if opening.lastgroup == "result":
            end = _find(text, self.result_tags[1], place) + len(self.result_tags[1])
            return _Region("result", start, end, text[start:end])
        calls, end = self.calls_at(text, start, place)
        return _Region("call", start, end, calls=calls)


def broken(
    text: str, start: int, place: int, close: str, problem: str, reopen: str = ""
) -> tuple[list[FoundCall], int]:
    """A call that can't be read: it ends at its closing tag, or before a line that starts the next call."""
    pattern = re.escape(close) + (f"|\\n(?={re.escape(reopen)})" if reopen else "")
    end = re.compile(pattern).search(text, place)
    if end is None:
        problem = f"no {close}"
        return [FoundCall(start=start, end=len(text), raw=text[place:], problem=problem, is_open=True)], len(text)
    return [FoundCall(start=start, end=end.end(), raw=text[place : end.start()], problem=problem)], end.end()


def _find(text: str, tag: str, start: int) -> int:
    found = text.find(tag, start)
    return len(text) if found < 0 else found
