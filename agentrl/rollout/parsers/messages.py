"""Replies that are messages of their own, each with a header that says whom it is for.

::

    <|channel|>analysis<|message|>I should add.<|end|><|start|>assistant to=functions.add<|channel|>commentary json…

What stands in front of <|message|> is the header. The first message goes on where the prompt ends, behind
"<|start|>assistant". A message by another author is an echo of what only the environment writes: it is text.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from agentrl.rollout.parsers.base import Block, ToolCallParser
from agentrl.rollout.parsers.strict_json import read_object, skip_space

START, MESSAGE = "<|start|>", "<|message|>"
AGAIN = f"{START}assistant"
"""How a further message of a reply begins."""


class Part(NamedTuple):
    """A message at [start, end) of a reply."""

    start: int
    end: int
    header: str | None
    """None: there is no header, so it is just text."""
    body: str
    body_start: int
    is_closed: bool
    """An end token follows it in the text."""


class MessageParser(ToolCallParser):
    """A format that says what a message is (`block`)."""

    is_whole = True
    ends: ClassVar[tuple[str, ...]]
    """The tokens that end a message."""

    def __init__(self, *, control: Mapping[str, int] | None = None, in_think: bool = False) -> None:
        super().__init__(control=control, in_think=in_think)
        ends = "|".join(map(re.escape, self.ends))
        self._end = re.compile(f"(?P<end>{ends})|(?={re.escape(START)})")
        self._header_end = re.compile(f"(?P<message>{re.escape(MESSAGE)})|{ends}|{re.escape(START)}")

    @abstractmethod
    def block(self, part: Part) -> Block:
        """What a message is."""

    def blocks(self, text: str, in_think: bool) -> Iterator[Block]:
        place = 0
        while place < len(text):
            part = self._part(text, place)
            yield self.block(part)
            place = part.end

    def _part(self, text: str, start: int) -> Part:
        begin = start + len(START) if text.startswith(START, start) else start
        found = self._header_end.search(text, begin)
        has_header = found is not None and found.lastgroup == "message"
        body = found.end() if found and has_header else begin
        end = self._end.search(text, _behind_object(text, body))
        body_end, place = (end.start(), end.end()) if end else (len(text), len(text))
        header = text[begin : body - len(MESSAGE)] if has_header else None
        return Part(start, place, header, text[body:body_end], body, end is not None and end.lastgroup == "end")


def _behind_object(text: str, place: int) -> int:
    """Behind the JSON object that a body begins with: tags inside its strings are text."""
    begin = skip_space(text, place)
    if not text.startswith("{", begin):
        return place
    try:
        return read_object(text, begin).end
    except ValueError:
        return place
