"""`[add(a=1, b=2), search(query="x")]`: calls as a Python list, read as literals and never evaluated.

LFM2 puts the list between tags; without them (Llama 3.2 and 4) it must be all that follows the thinking. Beside
Python's True, False and None, JSON's true, false and null are read, since LFM2's templates write both. A value is what
JSON can express: no tuples, sets, bytes, sums or names.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from agentrl.rollout.parsers.base import FoundCall
from agentrl.rollout.parsers.sampled import plain
from agentrl.rollout.parsers.tagged import TaggedParser, broken
from agentrl.types import Message, ToolCall

_TAGS = _CALL, _CALL_END = "<|tool_call_start|>", "<|tool_call_end|>"
_STRINGS = r"'''(?:[^'\\]|\\.|'(?!''))*+'''|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*+\"\"\"|"
_STRINGS += r"'(?:[^'\\\n]|\\.)*+'|\"(?:[^\"\\\n]|\\.)*+\""
_JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicParser(TaggedParser):
    """The list alone."""

    name = "pythonic"
    form = '[name(key=1, other="text"), ...] as the whole reply'
    how = 'reply with nothing but a list of all calls in Python\'s notation:\n[name(key=1, other="text")]'
    tags: ClassVar[tuple[str, ...]] = ("<think>", "</think>", "<tool_response>", "</tool_response>")
    call_tags = ("", "")
    opening = r"(?:\A|(?<=</think>))\s*(?=\[\s*[A-Za-z_][\w.]*\s*\()"
    around = ("[", ", ", "]")

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        try:
            calls = _read(plain(text[place:]), start, place, len(text))
        except ValueError as error:
            problem, raw = str(error), text[place:]
            calls = [FoundCall(start=start, end=len(text), raw=raw, problem=problem, is_open=True)]
        return calls, len(text)

    def write(self, message: Message) -> str:
        if message.text and message.tool_calls and not self.call_tags[0]:
            raise ValueError(f"the form {self.name} can't express text beside calls: the list is the whole reply")
        return super().write(message)

    def write_call(self, call: ToolCall, arguments: dict[str, Any]) -> str:
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    def write_broken(self, text: str) -> str:
        return text


class Lfm2Parser(PythonicParser):
    """The list between tags. A tag inside one of its strings is text."""

    name = "lfm2"
    form = f'{_CALL}[name(key=1, other="text"), ...]{_CALL_END}'
    how = f'write a list of all calls in Python\'s notation:\n{_CALL}[name(key=1, other="text")]{_CALL_END}'
    result_tags = ("<|tool_response_start|>", "<|tool_response_end|>")
    tags = ("<think>", "</think>", *result_tags, *_TAGS)
    call_tags = _TAGS
    opening = re.escape(_CALL)
    around = (f"{_CALL}[", ", ", f"]{_CALL_END}")
    _body = re.compile(
        rf"(?:{_STRINGS}|(?!{re.escape(_CALL_END)}|{re.escape(_CALL)})[^'\"])*+(?={re.escape(_CALL_END)})", re.DOTALL
    )

    def calls_at(self, text: str, start: int, place: int) -> tuple[Sequence[FoundCall], int]:
        body = self._body.match(text, place)
        if body is None:
            return broken(text, start, place, _TAGS, "it isn't closed, or a string isn't")
        end = body.end() + len(_CALL_END)
        try:
            return _read(plain(body[0]), start, place, end), end
        except ValueError as error:
            return broken(text, start, place, _TAGS, str(error))


def _read(source: str, start: int, place: int, end: int) -> list[FoundCall]:
    """The calls in a list that begins at `place` of a block at [start, end). Raises ValueError."""
    if "\r" in source or "\f" in source:
        raise ValueError("it holds a control character")
    padding = len(source) - len(source.lstrip())
    tree = _tree(source.strip())
    if not isinstance(tree, ast.List) or not tree.elts:
        raise ValueError("it is no list of calls")
    lines = _line_starts(source.strip())
    calls = [_call(node, lines, place + padding) for node in tree.elts]
    calls[0].start, calls[-1].end = start, end
    return calls


def _tree(source: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes such as \d in a model's strings
            return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(error.msg) from None
    except (ValueError, MemoryError, RecursionError):
        raise ValueError("it is no Python, or nested too deeply") from None


def _call(node: ast.expr, lines: list[bytes], offset: int) -> FoundCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("an element is no call with named arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("an argument has no name or occurs twice")
        arguments[keyword.arg] = _value(keyword.value)
    start = _place(lines, node.lineno, node.col_offset)
    end = _place(lines, node.end_lineno or 1, node.end_col_offset or 0)
    return FoundCall(start=offset + start, end=offset + end, name=_dotted(node.func), arguments=arguments)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError("a call has no plain name")


def _value(node: ast.expr) -> Any:
    """What JSON can express. Raises ValueError for all else."""
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | str):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            if not isinstance(value, bool) and math.isfinite(value):
                return -value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return _object(keys, values)
    raise ValueError("a value is no literal that JSON can express")


def _object(keys: list[ast.expr | None], values: list[ast.expr]) -> dict[str, Any]:
    names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
    texts = [name for name in names if isinstance(name, str)]
    if len(set(texts)) < len(names):
        raise ValueError("a key is no text or occurs twice")
    return dict(zip(texts, map(_value, values), strict=True))


def _line_starts(source: str) -> list[bytes]:
    return source.encode("utf-8", "surrogatepass").splitlines(keepends=True)


def _place(lines: list[bytes], line: int, column: int) -> int:
    """Characters before a place that ast gives as line and byte."""
    before = b"".join(lines[: line - 1]) + lines[line - 1][:column]
    return len(before.decode("utf-8", "surrogatepass"))
