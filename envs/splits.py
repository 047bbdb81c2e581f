"""Which tasks are trained on and which are held out, where a hash of each decides."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.errors import ConfigError
from agentrl.types import Task, derive_seed

SPLITS = ("train", "held_out")


def split_of(name: str, *, seed: int, held_out_fraction: float) -> str:
    """The split of what has this name, or these words. It stays when others are added."""
    return SPLITS[derive_seed(seed, "held_out", name) < held_out_fraction * 2**63]


def of_split(env: str, tasks: Iterable[Task], split: str, *, held_out_fraction: float) -> list[Task]:
    """The tasks of a split. Raises ConfigError where there is no such split, or nothing in it."""
    if split not in SPLITS:
        raise ConfigError(f"{env} has the splits {', '.join(SPLITS)}, not {split!r}")
    chosen = [task for task in tasks if task.split == split]
    if not chosen:
        raise ConfigError(
            f"all tasks are on the other side of env.held_out_fraction={held_out_fraction:g}, "
            f"none is {split}; change it"
        )
    return chosen
