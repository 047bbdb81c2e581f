"""`agentrl runs`: every run of a database; `agentrl runs RUN`: one in detail."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.common import add_db_argument, existing_database
from agentrl.interrupts import is_locked
from agentrl.progress import plain
from agentrl.types import GroupState

if TYPE_CHECKING:
    from agentrl.store.records import RunRecord
    from agentrl.store.store import Store

COLUMNS = ("id", "command", "env", "model", "status", "started", "steps", "reward", "held_out", "folder")
DEAD = "dead owner"
"""The run is running by its record, but its process is gone: killed, and not resumed yet."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "one", nargs="?", metavar="RUN", help="one run in detail: its id, the beginning of it, or its folder's name"
    )
    add_db_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON: for scripts")


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store:
        if options.one is None:
            runs = [_summary(store, record) for record in store.runs()]
            print(json.dumps(plain(runs), indent=2) if options.json else "\n".join(_table(runs)))
        else:
            detail = _detail(store, store.find_run(options.one))
            print(json.dumps(plain(detail), indent=2) if options.json else "\n".join(_detail_lines(detail)))
    return 0


def _summary(store: Store, record: RunRecord) -> dict[str, Any]:
    """One run as a line of the table."""
    steps = [step for step in store.steps(record.id) if not step.abandoned and step.metrics is not None]
    rewards = [step.metrics["reward_mean"] for step in steps if step.metrics and "reward_mean" in step.metrics]
    return {
        "id": record.id,
        "name": record.name,
        "command": record.config.get("command", ""),
        "env": record.config.get("env", {}).get("name", ""),
        "model": _model(record.config),
        "status": _status(record),
        "started": record.started_at,
        "steps": len(steps),
        "reward": rewards[-1] if rewards else None,
        "held_out": _held_out(Path(record.folder)),
        "folder": record.folder,
    }


def _status(record: RunRecord) -> str:
    """The lock in the run's folder tells whether a process is at work, whatever the record says.

    Where the folder isn't here, only the record counts: it may be another machine's, whose run is alive.
    """
    folder = Path(record.folder)
    if not record.folder or not folder.is_dir():
        return str(record.status)
    if is_locked(folder):
        return "running"
    return DEAD if record.status == "running" else str(record.status)


def _model(config: dict[str, Any]) -> str:
    """The model that played: its path, or its name at a chat endpoint."""
    engine = config.get("engine", {})
    return str(engine["model"] if engine.get("api") == "chat" else config.get("model", {}).get("path", ""))


def _held_out(folder: Path) -> float | None:
    """Success of the last greedy measure in the run's metrics.jsonl, or None."""
    greedy = [e.get("success") for e in _events(folder) if e.get("kind") == "eval" and e.get("sampling") == "greedy"]
    return greedy[-1] if greedy else None


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """What metrics.jsonl holds; a line that a kill cut short is left out."""
    file = folder / "metrics.jsonl"
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Columns as wide as what is in them; numbers to the right."""
    if not runs:
        return ["no runs in this database yet"]
    cells = [[_text(name, run[name]) for name in COLUMNS] for run in runs]
    head = [name.replace("_", "-") for name in COLUMNS]
    widths = [max(len(row[place]) for row in [head, *cells]) for place in range(len(COLUMNS))]
    return [_line(row, widths) for row in [head, *cells]]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    numbers = ("steps", "reward", "held_out")
    texts = [
        text.rjust(width) if name in numbers else text.ljust(width)
        for name, text, width in zip(COLUMNS, row, widths, strict=True)
    ]
    return "  ".join(texts).rstrip()


def _text(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN: nothing was measured
        return "-"
    if name == "started":
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _detail(store: Store, record: RunRecord) -> dict[str, Any]:
    """All that is known of one run: its line, its last step's metrics, its rollouts, its config."""
    steps, trajectories = store.steps(record.id), store.find_trajectories(run=record.id)
    last = next((step.metrics for step in reversed(steps) if step.metrics and not step.abandoned), None)
    endings = Counter(str(one.stop_reason or "running") for one in trajectories)
    states = {str(state): len(store.queue.groups(record.id, states=[state])) for state in GroupState}
    return _summary(store, record) | {
        "finished": record.finished_at,
        "seed": record.seed,
        "git_commit": record.git_commit,
        "packages": record.packages,
        "versions": sum(not version.abandoned for version in store.versions(record.id)),
        "abandoned_steps": sum(step.abandoned for step in steps),
        "groups": {state: num for state, num in states.items() if num},
        "rollouts": dict(endings),
        "last_metrics": last,
        "config": record.config,
        "resume": _resume_command(store, record),
    }


def _resume_command(store: Store, record: RunRecord) -> str | None:
    """What to type to go on with a run that was stopped; None where there is nothing to go on with."""
    command = record.config.get("command")
    if command not in ("train", "eval") or _status(record) in ("running", "completed"):
        return None
    return f"agentrl {command} --resume {record.id} --db {store.location}"


def _detail_lines(detail: dict[str, Any]) -> list[str]:
    lines = [f"run {detail['id']} ({detail['name']}): {detail['command']} of {detail['env']}, {detail['status']}"]
    shown = ("model", "started", "finished", "seed", "steps", "abandoned_steps", "versions", "reward", "held_out")
    for name in (*shown, "groups", "rollouts", "git_commit", "folder", "resume"):
        value = detail[name]
        if isinstance(value, dict):
            text = ", ".join(f"{key} {number}" for key, number in value.items()) or "-"
        else:
            text = _text("started" if name == "finished" else name, value)
        lines.append(f"  {name.replace('_', '-'):16}{text}")
    if detail["last_metrics"]:
        lines.append("  last step:")
        metrics = detail["last_metrics"].items()
        lines += [f"    {key:28}{_text(key, value)}" for key, value in metrics if not isinstance(value, dict)]
    return lines
