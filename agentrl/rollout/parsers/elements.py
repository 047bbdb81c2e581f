"""Calls whose arguments stand between tags as they are, one element for each, without any escaping.

So the form can't express a text that holds its own tags: such a call can't be read. What an argument is, the tool's
schema says (`coercion`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentrl.rollout.parsers.base import FoundCall, as_text
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.tagged import TaggedParser, broken
from agentrl.types import ToolCall


@dataclass(frozen=True, kw_only=True, slots=True)
class Elements:
    """How the head of a call, its arguments and its tail look."""

    head: re.Pattern[str]
    """Its group is the tool's name."""
    argument: re.Pattern[str]
    """One argument; its groups are the key and the value, which holds no tag of the form."""
    tail: re.Pattern[str]
    written: tuple[str, str, str]
    """Head with {name}, argument with {key} and {value}, and tail, as the templates write them."""
    padding: str = ""
    """What the templates write before and after each value."""

    def read(self, text: str, start: int, place: int) -> FoundCall:
        """The call that begins at `start` and whose head is at `place`. Raises ValueError."""
        head = self.head.match(text, place)
        if head is None:
            raise ValueError("its head can't be read")
        arguments: dict[str, str] = {}
        place = head.end()
        while match := self.argument.match(text, place):
            key, value = plain(match[1]), plain(match[2])
            if key in arguments:
                raise ValueError("an argument occurs twice")
            arguments[key] = value.removeprefix(self.padding).removesuffix(self.padding)
            place = match.end()
        tail = self.tail.match(text, place)
        if tail is None:
            raise ValueError("an argument isn't closed or holds tags of the form, or the call isn't closed behind them")
        return FoundCall(start=start, end=tail.end(), name=plain(head[1]), arguments=arguments, as_text=True)

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call with these arguments; what the form can't express is not cared for."""
        head, argument, tail = self.written
        parts = [
            argument.format(key=key, value=f"{self.padding}{as_text(value)}{self.padding}")
            for key, value in arguments.items()
        ]
        return "".join([head.format(name=name), *parts, tail])


class ElementParser(TaggedParser):
    """A format whose calls are elements between tags."""

    elements: ClassVar[Elements]

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        try:
            call = self.elements.read(text, start, place)
        except ValueError as error:
            return broken(text, start, place, self.call_tags, str(error))
        return [call], call.end

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return self.elements.write(call.name, arguments)


def value_without(tags: str) -> str:
    """A regular expression for text without these, given without their "<" and joined by |."""
    return f"(?:[^<]++|<(?!{tags}))*+"
