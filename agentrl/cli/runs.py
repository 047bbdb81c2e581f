"""`agentrl runs`: every run of a database; `agentrl runs RUN`: one in detail."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from agentrl.cli.common import add_db_argument, existing_database
from agentrl.overview import detail_of, summaries
from agentrl.progress import plain

COLUMNS = ("id", "command", "env", "model", "status", "started", "steps", "reward", "held_out", "folder")


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
            runs = summaries(store)
            print(json.dumps(plain(runs), indent=2) if options.json else "\n".join(_table(runs)))
        else:
            run = store.find_run(options.one)
            detail = detail_of(store, run, store.steps(run.id), store.endings(run.id))
            print(json.dumps(plain(detail), indent=2) if options.json else "\n".join(_detail_lines(detail)))
    return 0


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
