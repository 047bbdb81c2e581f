"""One kind of record: how it is recognised, and what its values become."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agentrl.envs.swe_bench.records.row import Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Recognised by keys alone: what a value looks like is no proof."""

    name: str
    read: Callable[[Row], dict[str, Any]]
    """Record → fields of `SweTask`. Raises ConfigError with the key."""
    keys: tuple[str, ...]
    """All of them are there."""
    not_keys: tuple[str, ...] = ()
    """None of them is there."""

    def fits(self, keys: Iterable[str]) -> bool:
        """Is a record with these keys one of this kind?"""
        return not self.lacks(keys)

    def lacks(self, keys: Iterable[str]) -> list[str]:
        """The keys that are missing, and those that should be."""
        there = set(keys)
        return [key for key in self.keys if key not in there] + [f"no {key}" for key in self.not_keys if key in there]
