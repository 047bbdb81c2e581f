"""One record of a dataset: its values by key, each checked where it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from agentrl.errors import ConfigError

ID_KEYS = ("instance_id", "id", "docker_image")
MAX_METADATA_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Its keys and values, and where they stand."""

    where: str
    """The file and the line, e.g. tasks.jsonl:3."""
    values: Mapping[str, Any]
    folder: Path
    """What relative paths in it start at."""
    asked: set[str] = field(default_factory=set)
    """Keys that were read; the others become metadata."""

    @property
    def name(self) -> str:
        """The record's id, for messages; empty where it has none."""
        return next((self.values[key] for key in ID_KEYS if isinstance(self.values.get(key), str)), "")

    def wrong(self, key: str, problem: str) -> ConfigError:
        """What to raise: the file, the line, the id, the key, what is wrong and what to do."""
        name = f" ({self.name})" if self.name else ""
        return ConfigError(f"{self.where}{name}: {key}: {problem}")

    def get(self, key: str) -> Any:
        """The value; None where there is none."""
        self.asked.add(key)
        return self.values.get(key)

    def text(self, key: str, *, or_empty: bool = False) -> str:
        """`or_empty`: it may be missing. Raises ConfigError."""
        value = self.get(key)
        if value is None or value == "":
            if or_empty:
                return ""
            raise self.wrong(key, f"{'empty' if key in self.values else 'missing'}; add it, or leave the record out")
        if not isinstance(value, str):
            raise self.wrong(key, f"a {type(value).__name__}, not a text")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """An object, or one as JSON in a text. Raises ConfigError."""
        value = self._decoded(key)
        if not isinstance(value, dict):
            raise self.wrong(key, f"{_kind(value)}, not an object")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts, or one as JSON in a text. Raises ConfigError."""
        value = self._decoded(key)
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            what = "a list with something else than texts" if isinstance(value, list) else _kind(value)
            raise self.wrong(key, f"{what}; write a list of names of tests, or such a list as JSON in a text")
        return tuple(dict.fromkeys(value))

    def metadata(self) -> dict[str, JsonValue]:
        """What no one asked for, where it is short."""
        rest = {key: value for key, value in self.values.items() if key not in self.asked}
        return {key: value for key, value in rest.items() if _is_short(value)}

    def _decoded(self, key: str) -> Any:
        value = self.get(key)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise self.wrong(key, f"no JSON: {error}") from None


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _is_short(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_METADATA_CHARACTERS
    return isinstance(value, (bool, int, float))
