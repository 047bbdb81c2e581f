"""`agentrl replay TRAJECTORY [--env | --regrade | --rescore CHECKPOINT | --fork TURN]`, `agentrl replay RUN --step N`

Exit code 0: as recorded. 1: something differs. 2: what was asked for isn't there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrl.cli.common import add_db_argument, existing_database, need_extra, run_async
from agentrl.cli.show import add_show_arguments, show
from agentrl.errors import ReplayError, StoreError
from agentrl.visible import visible

if TYPE_CHECKING:
    from agentrl.replay.recorded import Recorded
    from agentrl.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="TRAJECTORY", help="the id of a trajectory, or the beginning of it")
    add_db_argument(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--env", action="store_true", help="play the recorded actions in a fresh environment, and compare"
    )
    what.add_argument("--regrade", action="store_true", help="grade again, and append the grade")
    add_show_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    try:
        database = existing_database(options.db)
    except StoreError as error:
        raise ReplayError(str(error)) from None
    with Store.open(database) as store:
        return _chosen(options)(store, options)


def _chosen(options: argparse.Namespace) -> Callable[[Store, argparse.Namespace], int]:
    actions = {"env": play_again, "regrade": grade_again}
    return next((action for name, action in actions.items() if getattr(options, name)), look)


def look(store: Store, options: argparse.Namespace) -> int:
    """Print the trajectory as the model saw it, every id on a line."""
    from agentrl.replay.recorded import find

    show(store, find(store, options.id), options, every_id=True)
    return 0


def play_again(store: Store, options: argparse.Namespace) -> int:
    """Print the first difference."""
    need_extra("train")
    from agentrl.replay.environment import check_environment
    from agentrl.replay.recorded import renderer_of

    recorded = _load(store, options.id)
    outcome = run_async(check_environment(recorded, renderer_of(recorded, options.model)))
    if outcome.difference is None:
        print(f"equal: {outcome.num_turns} replies, what followed each, ending and artifacts")
        return 0
    for line in outcome.difference.lines():
        print(visible(line))
    if outcome.is_repeated:
        print("a second replay met the same difference: the environment or its surroundings have changed since")
    else:
        print("a second replay went yet another way: the environment isn't deterministic")
    return 1


def grade_again(store: Store, options: argparse.Namespace) -> int:
    """Print what changed."""
    from agentrl.replay.grading import regrade

    done = run_async(regrade(store, _load(store, options.id)))
    for name, before, now in done.changes:
        print(visible(f"  {name}: {before} → {now}"))
    if done.grade_id is None:
        print("not appended: nothing could be measured, and the trajectory has a measured grade")
    else:
        print(f"grade {done.grade_id} appended" + ("" if done.changes else ", equal to the one before"))
    return 1 if done.changes else 0


def _load(store: Store, id: str) -> Recorded:
    from agentrl.replay.recorded import load

    recorded = load(store, id)
    for warning in recorded.warnings:
        print(f"agentrl replay: warning: {visible(warning)}", file=sys.stderr)
    return recorded
