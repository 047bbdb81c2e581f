"""Lists for `tasks.exclude`."""

from __future__ import annotations

from pathlib import Path

from agentrl.tasks import Exclusion
from agentrl.types import Task


def line_of(task: Task) -> str:
    return Exclusion(key=task.key, id=task.id, split=task.split, reason="x").model_dump_json() + "\n"


def excluding(folder: Path, *tasks: Task) -> str:
    """The config override that leaves these out; the list is written into the folder."""
    path = folder / "untrusted.jsonl"
    path.write_text("".join(map(line_of, tasks)))
    return f"tasks.exclude='{path}'"
