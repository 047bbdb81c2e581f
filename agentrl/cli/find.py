"""`agentrl find`: stored trajectories by run, environment, ending, reward, step and text, the newest first."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agentrl.cli.columns import print_table
from agentrl.cli.common import add_db_argument, existing_database
from agentrl.cli.selection import add_selection, selection
from agentrl.progress import plain
from agentrl.selection import ENDINGS, RUNNING, place_of

if TYPE_CHECKING:
    from agentrl.store.records import TrajectorySummary

COLUMNS = ("trajectory", "run", "env", "task", "ending", "turns", "reward", "started")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, ENDINGS)
    parser.add_argument("--limit", type=_count, default=20, metavar="N", help="at most so many (20)")
    parser.add_argument("--after", metavar="TRAJECTORY", help="go on behind this one: the next page")
    parser.add_argument("--json", action="store_true", help="print JSON: for scripts")
    add_db_argument(parser)


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store:
        found = store.find_trajectories(
            limit=options.limit, after=place_of(store, options.after), **selection(store, options)
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


def _row(one: TrajectorySummary) -> list[Any]:
    reward = "unmeasured" if one.unmeasured else "-" if one.reward is None else f"{one.reward:.3f}"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.started_at))
    return [one.id, one.run, one.env, one.task_id, str(one.stop_reason or RUNNING), one.num_turns, reward, started]
