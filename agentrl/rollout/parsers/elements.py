"""Calls whose arguments stand between tags as they are, one element for each, without any escaping.

So the form can't express a text that holds its own tags: such a call can't be read. What an argument is, the tool's
schema says (`coercion`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from agentrl.rollout.parsers.base import FoundCall, as_text
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.tagged import TaggedParser, broken
from agentrl.types import ToolCall


class ElementParser(TaggedParser):
    """A format that says how the head of a call, its arguments and its tail look."""

    head: ClassVar[re.Pattern[str]]
    """What follows the opening tag; its group is the tool's name."""
    argument: ClassVar[re.Pattern[str]]
    """One argument; its groups are the key and the value, which holds no tag of the form."""
    tail: ClassVar[re.Pattern[str]]
    """The end of the call, through the closing tag."""
    written: ClassVar[tuple[str, str, str]]
    """Head with {name}, argument with {key} and {value}, and tail, as the templates write them."""
    padding: ClassVar[str] = ""
    """What the templates write before and after each value."""

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        call, problem = self.call_at(text, start, place)
        return ([call], call.end) if call else broken(text, start, place, self.call_tags, problem)

    def call_at(self, text: str, start: int, place: int) -> tuple[FoundCall | None, str]:
        """The call whose head is at `place`, or what is wrong with it."""
        head = self.head.match(text, place)
        if head is None:
            return None, "its head can't be read"
        arguments: dict[str, str] = {}
        place = head.end()
        while match := self.argument.match(text, place):
            key, value = plain(match[1]).strip(), plain(match[2])
            if key in arguments:
                return None, "an argument occurs twice"
            arguments[key] = value.removeprefix(self.padding).removesuffix(self.padding)
            place = match.end()
        tail = self.tail.match(text, place)
        if tail is None:
            return None, "it doesn't end behind its arguments, or an argument isn't closed or holds tags of the form"
        name = plain(head[1]).strip()
        return FoundCall(start=start, end=tail.end(), name=name, arguments=arguments, as_text=True), ""

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        head, argument, tail = self.written
        parts = [
            argument.format(key=key, value=f"{self.padding}{as_text(value)}{self.padding}")
            for key, value in arguments.items()
        ]
        return "".join([head.format(name=call.name), *parts, tail])


def value_without(tags: str) -> str:
    """A regular expression for text without these, given without their "<" and joined by |."""
    return f"(?:[^<]++|<(?!{tags}))*+"
