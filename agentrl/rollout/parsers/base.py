"""What every parser does: a reply in, a message and its calls with status and span out.

A format says where thinking, text and calls are (`blocks`) and how calls are written (`write_call`); the rest is here.
What can't be read is never repaired and never run; it is reported to the model.
"""

from __future__ import annotations

import copy
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from agentrl.rollout.parsers.checking import checked
from agentrl.rollout.parsers.sampled import Decode, TokenPlaces, disguise, plain, without_surrogates
from agentrl.rollout.parsers.strict_json import read_whole_object
from agentrl.tool import Tool
from agentrl.types import Message, ParsedCall, ToolCall


@dataclass(kw_only=True, slots=True)
class ParsedReply:
    """A reply as message, and its calls in order; `message.tool_calls` are the same calls, good and bad."""

    message: Message
    calls: list[ParsedCall]


@dataclass(kw_only=True, slots=True)
class FoundCall:
    """A call as it stands at [start, end) of a text, before anybody looks for its tool."""

    start: int
    end: int
    name: str = ""
    """Of a call that can't be read: a guess for the report."""
    arguments: dict[str, Any] | None = None
    """None: the call can't be read."""
    raw: str = ""
    """The arguments as JSON, as emitted; of a call that can't be read, its whole text."""
    as_text: bool = False
    """The arguments are texts: the tool's schema says what they are."""
    id: str | None = None
    """Where the form carries ids."""
    problem: str = ""
    """What is wrong with a call that can't be read."""
    is_open: bool = False
    """The text ended before the call did."""


class Block(NamedTuple):
    """A part of a reply: some text, some thinking, or calls."""

    text: str = ""
    is_thinking: bool = False
    calls: Sequence[FoundCall] = ()


class ToolCallParser(ABC):
    """Reads and writes the calls of one family of models."""

    name: ClassVar[str]
    """In `model.tool_parser`."""
    form: ClassVar[str]
    """A call as the model is shown it."""
    how: ClassVar[str]
    """Goes on after "To call a function, "."""
    tags: ClassVar[tuple[str, ...]]
    """All that structures a reply. Where the tokenizer has an id for one, it counts only where that was sampled."""
    think_open: ClassVar[str] = "<think>"
    is_prompted: ClassVar[bool] = False
    """No chat template writes this form: a model uses it because the system message says so."""
    is_whole: ClassVar[bool] = False
    """`write` gives all of a reply that follows the prompt, its thinking too."""
    around: ClassVar[tuple[str, str, str]] = ("", "\n", "")
    """Before the first call, between two, and after the last."""
    call_end: ClassVar[str] = ""
    """The stop token that a model samples after calls, where it is another one than after text."""

    def __init__(self, *, control: Mapping[str, int] | None = None, in_think: bool = False) -> None:
        """`control`: the added tokens of the tokenizer; `in_think`: prompts end inside an open think block."""
        self.control = {tag: id for tag, id in (control or {}).items() if tag in self.tags}
        self.in_think = in_think

    def after(self, opens_think: bool) -> Self:
        """This parser for the reply to a prompt that opens a think block, or doesn't."""
        if opens_think == self.in_think:
            return self
        other = copy.copy(self)
        other.in_think = opens_think
        return other

    # ---- a format says ----

    @abstractmethod
    def blocks(self, text: str, in_think: bool) -> Iterator[Block]:
        """The parts of a reply in order; `in_think`: it begins inside thinking. Never raises for any text."""

    @abstractmethod
    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        """One call as `blocks` finds it; what the form can't express needn't be cared for."""

    def write_broken(self, text: str) -> str:
        """A call that couldn't be read: its text, with the tags around it that were taken off."""
        return text

    # ---- and gets ----

    def parse(
        self,
        ids: Sequence[int],
        decode: Decode,
        *,
        tools: Mapping[str, Tool],
        stop_ids: Collection[int],
        truncated: bool = False,
        call_prefix: str = "call_",
    ) -> ParsedReply:
        """Read sampled ids; spans are [start, end) over `ids`. Never raises for any ids.

        `stop_ids` at the end are no text: one, or also what the template has the model sample before it. There is none
        where the reply was cut, or where a server stopped by other means or kept it to itself. `truncated`: the reply
        was cut, so an open call is TRUNCATED rather than INVALID_JSON. Ids of calls are `call_prefix` and their
        position, where the form carries none.
        """
        body = list(ids)
        while body and body[-1] in stop_ids:
            body.pop()
        text = decode(body)
        reply = self._read(disguise(text, body, decode, self.control), tools, truncated, call_prefix)
        if reply.calls:
            places = TokenPlaces(body, decode, text, self.control)
            for call in reply.calls:
                call.span = places.span(*call.span)
        return reply

    def parse_text(
        self, text: str, *, tools: Mapping[str, Tool], truncated: bool = False, call_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply of which there are no ids, so every tag in it counts; spans are [start, end) in characters."""
        return self._read(without_surrogates(text), tools, truncated, call_prefix)

    def write(self, message: Message) -> str:
        """What a model of the family says for a message's content and calls: `parse_text` reads them back.

        A call whose arguments are no JSON object, which couldn't be read, is written as its text. Raises ValueError for
        a call that the form can't express.
        """
        return "\n".join(part for part in (message.text, self.write_calls(message.tool_calls)) if part)

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """The calls of a message, as `write` does it."""
        if not calls:
            return ""
        objects = [_object(call.arguments) for call in calls]
        parts = [
            self.write_broken(call.arguments) if arguments is None else self.write_call(call, arguments)
            for call, arguments in zip(calls, objects, strict=True)
        ]
        begin, between, end = self.around
        written = f"{begin}{between.join(parts)}{end}"
        if all(arguments is not None for arguments in objects):
            self._check_written(written, calls)
        return written

    def _check_written(self, written: str, calls: Sequence[ToolCall]) -> None:
        found = [call for block in self.blocks(written, in_think=False) for call in block.calls]
        for call, read in itertools.zip_longest(calls, found):
            if call is None or read is None or not _is_same(read, call):
                name = call.name if call else calls[-1].name
                raise ValueError(f"a call of {name!r} can't be written in the form {self.name}: {self.form}")

    def instructions(self, schemas: str) -> str:
        """What the system message says where a template shows no tools; `schemas`: one a line."""
        intro = "# Tools\n\nYou can call these functions. Each line is the JSON schema of one of them:"
        return f"{intro}\n{schemas}\n\nTo call a function, {self.how}"

    def _read(self, text: str, tools: Mapping[str, Tool], truncated: bool, call_prefix: str) -> ParsedReply:
        found = _Parts()
        for block in self.blocks(text, self.in_think):
            found.add(block)
        carried = [call.id for call in found.calls]
        calls = []
        for index, call in enumerate(found.calls):
            has_own_id = bool(call.id) and carried.count(call.id) == 1
            id = call.id if has_own_id and call.id else f"{call_prefix}{index}"
            calls.append(checked(call, tools, id, truncated))
        return ParsedReply(message=found.message([call.call for call in calls]), calls=calls)


@dataclass(slots=True)
class _Parts:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[FoundCall] = field(default_factory=list)

    def add(self, block: Block) -> None:
        if block.calls:
            self.calls += block.calls
        else:
            (self.reasoning if block.is_thinking else self.content).append(plain(block.text))

    def message(self, calls: list[ToolCall]) -> Message:
        """A reply of nothing but text is that text exactly."""
        thought = "\n".join(part.strip() for part in self.reasoning) if self.reasoning else None
        said = "".join(self.content)
        content = said.strip() if self.reasoning or calls else said
        return Message(role="assistant", content=content, reasoning=thought, tool_calls=calls)


def as_text(value: Any) -> str:
    """A value in a form that carries texts: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    try:
        return read_whole_object(text)
    except ValueError:
        return None


def _is_same(read: FoundCall, call: ToolCall) -> bool:
    wanted = _object(call.arguments)
    if read.as_text and wanted is not None:
        wanted = {key: as_text(value) for key, value in wanted.items()}
    # 1, 1.0 and True are equal in Python, not in JSON.
    return read.name == call.name and json.dumps(read.arguments, sort_keys=True) == json.dumps(wanted, sort_keys=True)
