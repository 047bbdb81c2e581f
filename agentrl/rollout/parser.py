"""Tool calls in a sampled reply. What can't be read is never repaired and never run; it is reported to the model.

The form read here is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen)::

    <think>I should add.</think>Let me see.
    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

gives reasoning "I should add.", content "Let me see." and one call. Nothing inside a think block is a call.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from pydantic import ValidationError

from agentrl.tool import Tool
from agentrl.types import CallStatus, Message, ParsedCall, ToolCall

Decode = Callable[[Sequence[int]], str]
_THINK, _THINK_END = "<think>", "</think>"
_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_OPENING = re.compile(f"{_THINK}|{_CALL}")
_BLOCK_END = re.compile(f"{_CALL_END}|\\n(?={_CALL})")
"""Where a call that can't be read ends: at its tag, or before a line that starts the next call."""
_CHUNK = 16
"""Tokens that are decoded at once when looking for a place."""
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_SPACE = re.compile(r"[ \t\n\r]*")
"""What JSON counts as white space."""


@dataclass(kw_only=True, slots=True)
class ParsedReply:
    """A reply as message, and its calls in order; `message.tool_calls` are the same calls, good and bad."""

    message: Message
    calls: list[ParsedCall]


class ToolCallParser(ABC):
    """Reads the calls of one family of models."""

    @abstractmethod
    def parse_text(self, text: str, *, tools: Mapping[str, Tool], truncated: bool, call_prefix: str) -> ParsedReply:
        """Read a reply; spans are [start, end) in characters. Never raises for any text.

        `truncated`: the reply was cut, so an open call is TRUNCATED rather than INVALID_JSON. Ids of calls are
        `call_prefix` and their position.
        """

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
        """Read sampled ids; spans are [start, end) over `ids`.

        A stop id at the end is no text. There is none where the reply was cut, or where a server stopped by other means
        or kept it to itself.
        """
        body = list(ids[:-1] if ids and ids[-1] in stop_ids else ids)
        text = decode(body)
        reply = self.parse_text(text, tools=tools, truncated=truncated, call_prefix=call_prefix)
        if reply.calls:
            places = TokenPlaces(body, decode, text)
            for call in reply.calls:
                call.span = places.span(*call.span)
        return reply


class HermesParser(ToolCallParser):
    """`<tool_call>{json}</tool_call>`."""

    def __init__(self, *, in_think: bool = False) -> None:
        """`in_think`: prompts end inside an open think block (`Renderer.opens_think`)."""
        self.in_think = in_think

    def parse_text(
        self, text: str, *, tools: Mapping[str, Tool], truncated: bool = False, call_prefix: str = "call_"
    ) -> ParsedReply:
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[ParsedCall] = []
        for block in _blocks(text, self.in_think):
            if block.kind == _CALL:
                calls.append(_read_call(text, block, tools, truncated, f"{call_prefix}{len(calls)}"))
            else:
                (reasoning if block.kind == _THINK else content).append(block.body)
        thought = "\n".join(part.strip() for part in reasoning) if reasoning else None
        said = "".join(content)
        message = Message(
            role="assistant",
            content=said.strip() if reasoning or calls else said,
            reasoning=thought,
            tool_calls=[call.call for call in calls],
        )
        return ParsedReply(message=message, calls=calls)


def write_call(call: ToolCall) -> str:
    """A call as `HermesParser` reads it; the raw arguments are kept as they are."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{_CALL}\n{{"name": {name}, "arguments": {call.arguments}}}\n{_CALL_END}'


def write_reply(message: Message) -> str:
    """A reply's content and calls as text, one below the other."""
    return "\n".join(part for part in (message.text, *map(write_call, message.tool_calls)) if part)


def bad_call_observation(parsed: ParsedCall, tools: Mapping[str, Tool], max_chars: int) -> str:
    """What the model is told about a call that wasn't run; at most `max_chars` characters are its own.

    The problem, then the tool's schema where the tool is known, else the known names.
    """
    tool = tools.get(parsed.call.name)
    # Errors of a schema may quote names and values that the model chose, so they count as its own text.
    detail = parsed.error or ""
    foreign = detail[:max_chars] if parsed.status is CallStatus.INVALID_ARGUMENTS else ""
    own = (parsed.call.name if tool is None else "", parsed.call.arguments)
    quoted = " ".join(part for part in own if part)[: max_chars - len(foreign)]
    lines = [f"Error: the call was not run: {_PROBLEMS[parsed.status]}{': ' if detail else ''}{foreign or detail}."]
    if tool is not None:
        lines.append(f"Schema of the arguments of {tool.name}: {json.dumps(tool.schema, ensure_ascii=False)}")
    else:
        lines.append(f"Known tools: {', '.join(sorted(tools)) or 'none'}")
    if quoted:
        lines.append(f"Your text: {quoted}")
    return "\n".join(lines)


_PROBLEMS = {
    CallStatus.INVALID_JSON: 'it is not one JSON object {"name": ..., "arguments": {...}} between tags',
    CallStatus.TRUNCATED: "the reply was cut inside it",
    CallStatus.UNKNOWN_TOOL: "there is no tool of that name",
    CallStatus.INVALID_ARGUMENTS: "the arguments don't fit the schema",
}


class TokenPlaces:
    """Which tokens hold which characters of `text` = decode(ids).

    Beginnings are decoded, since a character may be spread over tokens and a token may hold parts of two. That is
    done within chunks, so that a long reply costs about two decodings; where chunks don't decode to the text (a
    character lies across two, or leading spaces are dropped), the whole is one chunk.
    """

    def __init__(self, ids: Sequence[int], decode: Decode, text: str) -> None:
        self._decode = decode
        self._chunks: list[Sequence[int]] = [ids[i : i + _CHUNK] for i in range(0, len(ids), _CHUNK)]
        self._pieces = [decode(chunk) for chunk in self._chunks]
        if "".join(self._pieces) != text:
            self._chunks, self._pieces = [ids], [text]
        self._ends = list(accumulate(map(len, self._pieces)))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """[start, end) in characters, not empty, as [start, end) in tokens."""
        return max(0, self._num_tokens(start + 1) - 1), self._num_tokens(end)

    def _num_tokens(self, num_chars: int) -> int:
        """The fewest ids whose text begins with the first `num_chars` characters."""
        index = bisect_left(self._ends, num_chars)
        chunk, piece = self._chunks[index], self._pieces[index]
        wanted = piece[: num_chars - (self._ends[index] - len(piece))]
        low, high = 0, len(chunk)
        while low < high:
            middle = (low + high) // 2
            if self._decode(chunk[:middle]).startswith(wanted):
                high = middle
            else:
                low = middle + 1
        return sum(map(len, self._chunks[:index])) + low


class _Block(NamedTuple):
    kind: str
    """`<think>`, `<tool_call>`, or "" for plain text."""
    body: str
    start: int
    end: int
    value: _Object | None = None
    """The object of a well-formed call."""
    problem: str = ""
    """What is wrong with a call."""
    closed: bool = True


class _Object(NamedTuple):
    items: dict[str, tuple[Any, str]]
    """Key → (value, its raw text)."""
    end: int


def _blocks(text: str, in_think: bool) -> Iterator[_Block]:
    """The reply in order, without gaps (tags excepted)."""
    end = _find(text, _THINK_END, 0) if in_think else _end_of_open_think(text)
    if end is None:
        yield from _scan(text, 0)
        return
    yield _Block(_THINK, text[:end].removeprefix(_THINK), 0, end)
    yield from _scan(text, end + len(_THINK_END))


def _end_of_open_think(text: str) -> int | None:
    """Where a block ends that the reply didn't begin, so the prompt did; an end tag inside a call's JSON is text."""
    if _THINK_END not in text:
        return None
    for block in _scan(text, 0):
        if block.kind == _THINK:
            return None
        if block.kind == "" and _THINK_END in block.body:
            return block.start + block.body.index(_THINK_END)
    return None


def _scan(text: str, place: int) -> Iterator[_Block]:
    while place < len(text):
        opening = _OPENING.search(text, place)
        start = opening.start() if opening else len(text)
        if start > place:
            yield _Block("", text[place:start], place, start)
        if opening is None:
            return
        if opening[0] == _THINK:
            end = _find(text, _THINK_END, start)
            yield _Block(_THINK, text[start + len(_THINK) : end], start, end)
            place = end + len(_THINK_END)
        else:
            block = _call_block(text, start)
            yield block
            place = block.end


def _find(text: str, tag: str, start: int) -> int:
    found = text.find(tag, start)
    return len(text) if found < 0 else found


def _call_block(text: str, start: int) -> _Block:
    """The call that opens at `start`. A tag inside a JSON string ends nothing."""
    body = _skip_space(text, start + len(_CALL))
    value: _Object | None = None
    problem = ""
    try:
        value = _scan_object(text, body)
        after = _skip_space(text, value.end)
        if text.startswith(_CALL_END, after):
            return _Block(_CALL, text[body : value.end], start, after + len(_CALL_END), value)
        if after == len(text) or text.startswith(_CALL, after):
            return _Block(_CALL, text[body : value.end], start, value.end, None, f"no {_CALL_END}", closed=False)
        problem = "something follows the object"
    except RecursionError:
        problem = "nested too deeply"
    except json.JSONDecodeError as error:
        problem = error.msg
    except ValueError as error:
        problem = str(error)
    end = _BLOCK_END.search(text, body)
    if end is None:
        return _Block(_CALL, text[body:], start, len(text), None, f"no {_CALL_END}", closed=False)
    return _Block(_CALL, text[body : end.start()], start, end.end(), None, problem)


def _read_call(text: str, block: _Block, tools: Mapping[str, Tool], truncated: bool, id: str) -> ParsedCall:
    span = (block.start, block.end)
    if block.value is None:
        is_cut = truncated and not block.closed and not text[block.end :].strip()
        status = CallStatus.TRUNCATED if is_cut else CallStatus.INVALID_JSON
        return _bad(block.body, status, span, block.problem, id)
    name, _ = block.value.items.get("name", (None, ""))
    arguments, raw = block.value.items.get("arguments", (None, ""))
    if not isinstance(name, str) or not name:
        return _bad(block.body, CallStatus.INVALID_JSON, span, '"name" is no text', id)
    if not isinstance(arguments, dict):
        return _bad(block.body, CallStatus.INVALID_JSON, span, '"arguments" is no object', id)
    return check_call(ToolCall(id=id, name=name, arguments=raw), arguments, span, tools)


def check_call(
    call: ToolCall, arguments: dict[str, Any], span: tuple[int, int], tools: Mapping[str, Tool]
) -> ParsedCall:
    """A call whose arguments could be read, held against its tool's schema."""
    if call.name not in tools:
        return ParsedCall(call=call, status=CallStatus.UNKNOWN_TOOL, span=span)
    try:
        checked = tools[call.name].validate(arguments)
    except ValueError as error:
        return ParsedCall(call=call, status=CallStatus.INVALID_ARGUMENTS, span=span, error=_describe(error))
    return ParsedCall(call=call, status=CallStatus.OK, span=span, arguments=checked)


def _bad(body: str, status: CallStatus, span: tuple[int, int], problem: str, id: str) -> ParsedCall:
    """A call that can't be read: its whole text stands for the arguments, its name is a guess for the report."""
    guess = _NAME.search(body)
    call = ToolCall(id=id, name=guess[1] if guess else "", arguments=body.strip())
    return ParsedCall(call=call, status=status, span=span, error=problem)


def _describe(error: ValueError) -> str:
    """The fields that don't fit, without the values: the model knows what it wrote."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)


def read_object(text: str) -> dict[str, Any]:
    """The JSON object that `text` is. Raises ValueError or RecursionError; NaN and a key that occurs twice are none."""
    value = _DECODER.decode(text)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _scan_object(text: str, start: int) -> _Object:
    """The JSON object at `start`, with the raw text of each value. Raises ValueError or RecursionError."""
    if not text.startswith("{", start):
        raise ValueError("it is no JSON object")
    items: dict[str, tuple[Any, str]] = {}
    place = _skip_space(text, start + 1)
    while True:
        key, place = _DECODER.raw_decode(text, place)
        if not isinstance(key, str) or key in items:
            raise ValueError("a key is no text or occurs twice")
        begin = _skip_space(text, _expect(text, place, ":"))
        value, place = _DECODER.raw_decode(text, begin)
        items[key] = (value, text[begin:place])
        place = _skip_space(text, place)
        if text.startswith("}", place):
            return _Object(items, place + 1)
        place = _skip_space(text, _expect(text, place, ","))


def _expect(text: str, place: int, character: str) -> int:
    place = _skip_space(text, place)
    if not text.startswith(character, place):
        raise ValueError(f"expected {character!r} at character {place}")
    return place + 1


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place
