"""How a model writes an action of a gymnasium space: `<action>left</action>`, checked before anything is stepped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_ACTION_NUMBERS = 16
MAX_ACTION_CHARACTERS = 400
ROUNDING = 1e-6
"""A number this little outside of a Box counts as its bound."""
_TAG = re.compile(r"<action>(.*?)</action>", re.S | re.I)
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """The actions of one space. Each is a name, a number, or a list of numbers."""

    names: tuple[str, ...] = ()
    """Of a Discrete space's actions; empty: numbers."""
    start: int = 0
    """The first number of a Discrete space."""
    ranges: tuple[tuple[float, float], ...] = ()
    """Lowest and highest value of each number."""
    whole: bool = True
    """Whole numbers only."""
    is_scalar: bool = True
    """One number, not a list of them."""
    dtype: Any = None

    @classmethod
    def of(cls, id: str, space: Any, names: Sequence[str]) -> Actions:
        """For a space; `names` may be empty. Raises ValueError for a space that isn't supported."""
        kind = type(space).__name__
        if names and kind != "Discrete":
            raise ValueError(f"env.actions names the actions of a Discrete space; {id} has {kind}")
        if kind == "Discrete":
            return cls._discrete(id, space, tuple(names))
        num_numbers = len(space.shape or ()) == 1 and int(space.shape[0])
        if kind == "MultiDiscrete" and 0 < num_numbers <= MAX_ACTION_NUMBERS:
            firsts = [int(first) for first in space.start]
            pairs = zip(firsts, space.nvec, strict=True)
            ranges = tuple((float(first), float(first + int(count) - 1)) for first, count in pairs)
            return cls(ranges=ranges, is_scalar=False, dtype=space.dtype)
        if kind == "Box" and 0 < num_numbers <= MAX_ACTION_NUMBERS and space.is_bounded():
            ranges = tuple((float(low), float(high)) for low, high in zip(space.low, space.high, strict=True))
            return cls(ranges=ranges, whole=space.dtype.kind in "iu", is_scalar=False, dtype=space.dtype)
        raise ValueError(
            f"{id}: actions of {space} can't be written as a tag; supported are Discrete, and MultiDiscrete and "
            f"bounded Box of one dimension with at most {MAX_ACTION_NUMBERS} numbers"
        )

    @classmethod
    def _discrete(cls, id: str, space: Any, names: tuple[str, ...]) -> Actions:
        count, start = int(space.n), int(space.start)
        if names and len(names) != count:
            raise ValueError(f"env.actions has {len(names)} names; {id} has {count} actions")
        if len({_folded(name) for name in names}) != len(names) or not all(_folded(name) for name in names):
            raise ValueError("env.actions: each action needs a name of its own")
        return cls(names=names, start=start, ranges=((float(start), float(start + count - 1)),))

    def parse(self, text: str) -> Any:
        """The action in a reply. Raises ValueError, for the model to read, where there isn't exactly one."""
        tags = _TAG.findall(text)
        if len(tags) != 1:
            raise ValueError("no action" if not tags else f"{len(tags)} actions, one at a time")
        body = tags[0].strip()
        if len(body) > MAX_ACTION_CHARACTERS:
            raise ValueError("the action is too long")
        return self._named(body) if self.names else self._numbers(body)

    def write(self, action: Any) -> str:
        """The tag for an action of the space."""
        if self.names:
            return f"<action>{self.names[int(action) - self.start]}</action>"
        numbers = [action] if self.is_scalar else list(action)
        return f"<action>{' '.join(self._number_text(number) for number in numbers)}</action>"

    def help(self) -> str:
        """What may be written."""
        if self.names:
            return " or ".join(f"<action>{name}</action>" for name in self.names)
        kind = "a whole number" if self.whole else "a number"
        bounds = ", ".join(f"{_shown(low)} to {_shown(high)}" for low, high in self.ranges)
        example = " ".join(_shown(low) for low, _ in self.ranges)
        return f"<action>{example}</action> with {kind}{'' if self.is_scalar else ' for each'} from {bounds}"

    def _named(self, body: str) -> int:
        folded = [_folded(name) for name in self.names]
        if _folded(body) not in folded:
            raise ValueError("there is no such action")
        return self.start + folded.index(_folded(body))

    def _numbers(self, body: str) -> Any:
        words = body.replace(",", " ").split()
        if len(words) != len(self.ranges):
            raise ValueError(f"{len(words)} numbers instead of {len(self.ranges)}")
        numbers = [self._number(word, *bounds) for word, bounds in zip(words, self.ranges, strict=True)]
        if self.is_scalar:
            return numbers[0]
        import numpy as np

        return np.array(numbers, dtype=self.dtype)

    def _number(self, word: str, low: float, high: float) -> float | int:
        match = _NUMBER.fullmatch(word)
        if match is None or (self.whole and match[1]):
            raise ValueError("not a whole number" if self.whole else "not a number")
        number = int(word) if self.whole else float(word)
        if not low - ROUNDING <= number <= high + ROUNDING:
            raise ValueError(f"not between {_shown(low)} and {_shown(high)}")
        return number if self.whole else min(max(number, low), high)

    def _number_text(self, number: Any) -> str:
        return str(int(number)) if self.whole else f"{float(number):.9f}"


def _folded(name: str) -> str:
    return " ".join(name.split()).casefold()


def _shown(number: float) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"
