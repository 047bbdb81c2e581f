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
from functools import lru_cache
from typing import ClassVar, NamedTuple

from agentrl.rollout.parsers.base import Block, FoundCall, ToolCallParser


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
    call_tags: ClassVar[tuple[str, str]]
    """Between these a call stands."""
    opening: ClassVar[str] = ""
    """A regular expression for where a call begins, if that is not just the first of `call_tags`."""

    def __init__(self, *, control: Mapping[str, int] | None = None, in_think: bool = False) -> None:
        super().__init__(control=control, in_think=in_think)
        think, result = re.escape(self.think_open), re.escape(self.result_tags[0])
        self._opening = re.compile(
            f"(?P<think>{think})|(?P<result>{result})|(?P<call>{self.opening or re.escape(self.call_tags[0])})"
        )

    @abstractmethod
    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        """The calls of the block whose opening tag is at [start, place), at least one, and where the block ends."""

    def write_broken(self, text: str) -> str:
        return f"{self.call_tags[0]}\n{text}\n{self.call_tags[1]}"

    def blocks(self, text: str, in_think: bool) -> Iterator[Block]:
        end = _find(text, self.think_close, 0) if in_think else self._end_of_open_think(text)
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
            runs_on = region.calls and region.calls[-1].is_open
            if (region.kind == "" or runs_on) and self.think_close in text[region.start : region.end]:
                return text.index(self.think_close, region.start)
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


def broken(text: str, start: int, place: int, tags: tuple[str, str], problem: str) -> tuple[list[FoundCall], int]:
    """A call that can't be read, and where it ends.

    That is at the closing tag that belongs to its opening one, so that nothing it quotes is run; where there is none,
    at the first closing tag or before a line that starts the next call.
    """
    opening, closing = tags
    end = _partners(text, opening, closing).get(text.find(opening, start))
    if end is None:
        match = re.compile(f"{re.escape(closing)}|\\n(?={re.escape(opening)})").search(text, place)
        if match is None:
            call = FoundCall(start=start, end=len(text), raw=text[place:], problem=f"no {closing}", is_open=True)
            return [call], len(text)
        end = match.end()
    body = text[place:end].removesuffix(closing)
    return [FoundCall(start=start, end=end, raw=body, problem=problem)], end


@lru_cache(maxsize=4)
def _partners(text: str, opening: str, closing: str) -> dict[int, int]:
    """Where each opening tag is → where the closing tag that belongs to it ends, if there is one."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(f"({re.escape(opening)})|{re.escape(closing)}", text):
        if match[1] is not None:
            opened.append(match.start())
        elif opened:
            partners[opened.pop()] = match.end()
    return partners


def _find(text: str, tag: str, start: int) -> int:
    found = text.find(tag, start)
    return len(text) if found < 0 else found
