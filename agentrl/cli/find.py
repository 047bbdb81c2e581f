"""`agentrl find`: stored trajectories by run, environment, ending, reward, step and text, the newest first."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agentrl.cli.columns import print_table
from agentrl.cli.common import add_db_argument, existing_database
from agentrl.errors import ConfigError
from agentrl.progress import plain
from agentrl.types import Purpose, StopReason

if TYPE_CHECKING:
    from agentrl.store.find import Selection
    from agentrl.store.records import TrajectorySummary
    from agentrl.store.store import Store

COLUMNS = ("trajectory", "run", "env", "task", "ending", "turns", "reward", "started")
RUNNING = "running"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", dest="of_run", metavar="RUN", help="of this run: its id, the beginning of it, or its folder's name"
    )
    parser.add_argument("--step", type=int, metavar="N", help="that step N of --run trained on, whoever sampled it")
    parser.add_argument("--env", metavar="NAME", help="of this environment")
    parser.add_argument(
        "--stop-reason", choices=[*map(str, StopReason), RUNNING], metavar="REASON", help="that ended so"
    )
    parser.add_argument("--purpose", choices=[str(purpose) for purpose in Purpose], help="played for this")
    parser.add_argument("--min-reward", type=float, metavar="R", help="with at least this reward")
    parser.add_argument("--max-reward", type=float, metavar="R", help="with at most this reward")
    parser.add_argument("--text", help="in which this was written, asked or given by a tool, in upper or lower case")
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (20)")
    parser.add_argument("--after", metavar="TRAJECTORY", help="go on behind this one: the next page")
    parser.add_argument("--json", action="store_true", help="print JSON: for scripts")
    add_db_argument(parser)


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store:
        found = store.find_trajectories(
            limit=options.limit, after=_place(store, options.after), **_selection(store, options)
        )
    if options.json:
        print(json.dumps([plain(asdict(one)) for one in found], indent=2))
    elif found:
        print_table(COLUMNS, [_row(one) for one in found])
        if len(found) == options.limit:
            print(f"maybe more: add --after {found[-1].id}")
    else:
        print("no trajectory matches")
    return 0


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def _place(store: Store, after: str | None) -> tuple[float, str] | None:
    if after is None:
        return None
    trajectory = store.load_trajectory(store.resolve("trajectory", after))
    return trajectory.started_at, trajectory.id


def _selection(store: Store, options: argparse.Namespace) -> Selection:
    """What is asked for. Raises ConfigError for what can't be, StoreError for an unknown run."""
    low, high = options.min_reward, options.max_reward
    if low is not None and high is not None and low > high:
        raise ConfigError(f"no reward is at least {low:g} (--min-reward) and at most {high:g} (--max-reward)")
    if options.step is not None and options.of_run is None:
        raise ConfigError("--step needs the run that trained: add --run; `agentrl runs` lists them")
    run = None if options.of_run is None else store.find_run(options.of_run).id
    reason = options.stop_reason
    return {
        "run": run if options.step is None else None,
        "step": None if run is None or options.step is None else (run, options.step),
        "env": options.env,
        "stop_reason": StopReason(reason) if reason not in (None, RUNNING) else reason,
        "purpose": options.purpose and Purpose(options.purpose),
        "min_reward": low,
        "max_reward": high,
        "text": options.text,
    }


def _row(one: TrajectorySummary) -> list[Any]:
    reward = "unmeasured" if one.unmeasured else "-" if one.reward is None else f"{one.reward:.3f}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.started_at))
    return [one.id, one.run, one.env, one.task_id, str(one.stop_reason or RUNNING), one.num_turns, reward, started]
