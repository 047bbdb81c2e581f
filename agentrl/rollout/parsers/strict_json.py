"""JSON as the standard has it: no key twice, no NaN, no number beyond a float, no trailing comma, no single quotes."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from agentrl.rollout.parsers.sampled import plain

_SPACE = re.compile(r"[ \t\n\r]*")
"""What JSON counts as white space."""


class Object(NamedTuple):
    """An object that ends at `end` of a text."""

    items: dict[str, tuple[Any, str]]
    """Key → (value, its raw text)."""
    end: int


def read_object(text: str, start: int) -> Object:
    """The object at `start`, with the raw text of each value. Raises ValueError."""
    try:
        return _read_object(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_arguments(text: str, start: int) -> tuple[dict[str, Any], str, int]:
    """The object at `start`, its raw text, and where it ends. Raises ValueError."""
    items, end = read_object(text, start)
    return {key: value for key, (value, _) in items.items()}, plain(text[start:end]), end


def read_value(text: str) -> Any:
    """The value that a text is, white space around it aside. Raises ValueError."""
    try:
        value, end = _DECODER.raw_decode(text, skip_space(text, 0))
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if skip_space(text, end) != len(text):
        raise ValueError("something follows the value")
    return value


def read_whole_object(text: str) -> dict[str, Any]:
    """The object that a text is. Raises ValueError."""
    value = read_value(text)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def skip_space(text: str, place: int) -> int:
    """The first place from `place` on that is no white space."""
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _read_object(text: str, start: int) -> Object:
    if not text.startswith("{", start):
        raise ValueError("it is no JSON object")
    items: dict[str, tuple[Any, str]] = {}
    place = skip_space(text, start + 1)
    if text.startswith("}", place):
        return Object(items, place + 1)
    while True:
        key, place = _decode(text, place)
        if not isinstance(key, str) or key in items:
            raise ValueError("a key is no text or occurs twice")
        begin = skip_space(text, _expect(text, place, ":"))
        value, place = _decode(text, begin)
        items[key] = (value, plain(text[begin:place]))
        place = skip_space(text, place)
        if text.startswith("}", place):
            return Object(items, place + 1)
        place = skip_space(text, _expect(text, place, ","))


def _decode(text: str, place: int) -> tuple[Any, int]:
    """A value and where it ends; tags that were spelled in letters are their letters again."""
    value, end = _DECODER.raw_decode(text, place)
    raw = text[place:end]
    shown = plain(raw)
    return (value if shown is raw or shown == raw else _DECODER.decode(shown)), end


def _expect(text: str, place: int, character: str) -> int:
    place = skip_space(text, place)
    if not text.startswith(character, place):
        raise ValueError(f"expected {character!r}")
    return place + 1


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
