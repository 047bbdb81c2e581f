"""Gymnasium's observations as text, and what a person would tell about the best-known environments."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MAX_NUMBERS = 200
"""Of an observation that is told as text; an image has more."""
_COLOURED = re.compile(r"\x1b\[([0-9;]*)m([^\x1b]*)")
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|.|\Z)", re.S)


class Known(NamedTuple):
    """What a person would tell about an environment."""

    rules: str
    actions: tuple[str, ...]
    """In the order of the space's numbers."""


_MOVES = ("left", "down", "right", "up")
KNOWN = {
    "FrozenLake": Known("Go from S to G over the ice F; a hole H ends the game. [ ] is around your place.", _MOVES),
    "CliffWalking": Known("Go from x to T; the cliff C costs 100 and takes you back.", ("up", "right", "down", "left")),
    "Taxi": Known(
        "Fetch the passenger and drop them at the destination. [ ] is around the taxi; | is a wall.",
        ("south", "north", "east", "west", "pickup", "dropoff"),
    ),
    "Blackjack": Known("Come closer to 21 than the dealer, not over it.", ("stick", "hit")),
}
"""By the name in the id, without its version."""


def known(id: str) -> Known | None:
    """What is known of an id such as `FrozenLake-v1`; nothing of a stranger's `them/FrozenLake-v1`."""
    return KNOWN.get(_name(id))


def _name(id: str) -> str:
    return id.partition("-v")[0]


def plain_text(ansi: str) -> str:
    """A rendering for a terminal as plain text: `[x]` where the background of x is coloured, other colours dropped."""

    def mark(match: re.Match[str]) -> str:
        codes, text = match[1].split(";"), match[2]
        is_marked = any(code.isdecimal() and (40 <= int(code) <= 47 or 100 <= int(code) <= 107) for code in codes)
        return f"[{text}]" if is_marked and text else text

    return _ESCAPE.sub("", _COLOURED.sub(mark, ansi)).strip("\n").rstrip()


def describe(id: str, observation: Any) -> str:
    """An observation in words."""
    name = _name(id)
    if name == "Blackjack" and isinstance(observation, tuple):
        total, dealer, ace = (int(value) for value in observation)
        return f"Your sum is {total}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."
    if name == "Taxi":
        return _taxi(int(observation))
    return _plain(observation)


def _taxi(state: int) -> str:
    """The decoding is that of gymnasium's TaxiEnv.decode."""
    rest, destination = divmod(state, 4)
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    where = "in the taxi" if passenger == 4 else f"at {'RGYB'[passenger]}"
    return f"Taxi in row {row}, column {column}. Passenger {where}, destination {'RGYB'[destination]}."


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items())
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def check_observations(id: str, space: Any) -> None:
    """Raises ValueError for a space that is no text, such as an image."""
    try:
        number = _num_numbers(space)
    except TypeError:
        raise ValueError(f"{id}: can't tell observations of {type(space).__name__} as text") from None
    if number > MAX_NUMBERS:
        raise ValueError(
            f"{id}: an observation of {type(space).__name__} has {number} numbers, too many to tell as text "
            f"(at most {MAX_NUMBERS}) and there is no ansi rendering"
        )


def _num_numbers(space: Any) -> int:
    kind = type(space).__name__
    if kind in ("Discrete", "Text"):
        return 1
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        count = 1
        for length in space.shape:
            count *= int(length)
        return count
    if kind == "Tuple":
        return sum(_num_numbers(part) for part in space.spaces)
    if kind == "Dict":
        return sum(_num_numbers(part) for part in space.spaces.values())
    raise TypeError(kind)
