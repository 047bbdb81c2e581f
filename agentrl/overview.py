"""What is known of a run: its record, its folder, its last metrics; for the terminal and the browser."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.interrupts import is_locked

if TYPE_CHECKING:
    from agentrl.store.records import Endings, LastStep, RunRecord, StepRecord
    from agentrl.store.store import Store

DEAD = "dead owner"
"""The run is running by its record, but its process is gone: killed, and not resumed yet."""


def summaries(store: Store) -> list[dict[str, Any]]:
    """Every run as a line of a table, the newest first."""
    last = store.last_steps()
    return [_summary(record, last.get(record.id)) for record in store.runs()]


def _summary(record: RunRecord, last: LastStep | None) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "command": record.config.get("command", ""),
        "env": record.config.get("env", {}).get("name", ""),
        "model": model_of(record.config),
        "status": status(record),
        "started": record.started_at,
        "steps": 0 if last is None else last.num_steps,
        "reward": None if last is None else last.metrics.get("reward_mean"),
        "held_out": held_out(Path(record.folder)),
        "folder": record.folder,
    }


def status(record: RunRecord) -> str:
    """The lock in the run's folder tells whether a process is at work, whatever the record says.

    Where the folder isn't here, only the record counts: it may be another machine's, whose run is alive.
    """
    folder = Path(record.folder)
    if not record.folder or not folder.is_dir():
        return str(record.status)
    if is_locked(folder):
        return "running"
    return DEAD if record.status == "running" else str(record.status)


def model_of(config: dict[str, Any]) -> str:
    """The model that played: its path, or its name at a chat endpoint."""
    engine = config.get("engine", {})
    return str(engine["model"] if engine.get("api") == "chat" else config.get("model", {}).get("path", ""))


def held_out(folder: Path) -> float | None:
    """Success of the last greedy measure in the run's metrics.jsonl, or None."""
    greedy = [e.get("success") for e in events(folder) if e.get("kind") == "eval" and e.get("sampling") == "greedy"]
    return greedy[-1] if greedy else None


def events(folder: Path) -> Sequence[dict[str, Any]]:
    """What metrics.jsonl holds; a line that a kill cut short is left out. Not to be changed: it is kept."""
    file = folder / "metrics.jsonl"
    try:
        known = file.stat()
        return _events(file, known.st_mtime_ns, known.st_size) if file.is_file() else ()
    except OSError:
        return ()


@lru_cache(maxsize=32)
def _events(file: Path, changed_ns: int, num_bytes: int) -> Sequence[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return [event for event in map(_parsed, lines) if isinstance(event, dict)]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def detail_of(
    store: Store, record: RunRecord, steps: Sequence[StepRecord], endings: Sequence[Endings]
) -> dict[str, Any]:
    """All that is known of one run: its line, its last step's metrics, its rollouts, its config.

    `steps` and `endings` are the store's, all of the run; who asks may need them besides.
    """
    rollouts = Counter[str]()
    for one in endings:
        rollouts[str(one.stop_reason or "running")] += one.num
    last = next((step.metrics for step in reversed(steps) if step.metrics and not step.abandoned), None)
    return _summary(record, store.last_steps().get(record.id)) | {
        "finished": record.finished_at,
        "seed": record.seed,
        "git_commit": record.git_commit,
        "packages": record.packages,
        "versions": sum(not version.abandoned for version in store.versions(record.id)),
        "abandoned_steps": sum(step.abandoned for step in steps),
        "groups": store.group_states(record.id),
        "rollouts": dict(sorted(rollouts.items())),
        "last_metrics": last,
        "config": record.config,
        "resume": resume_command(store, record),
    }


def resume_command(store: Store, record: RunRecord) -> str | None:
    """What to type to go on with a run that was stopped; None where there is nothing to go on with."""
    command = record.config.get("command")
    if command not in ("train", "eval") or status(record) in ("running", "completed"):
        return None
    return f"agentrl {command} --resume {record.id} --db {store.location}"
