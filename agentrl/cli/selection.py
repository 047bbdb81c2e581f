"""The options by which commands choose among the stored trajectories."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.selection import CALLS, PURPOSES, Wanted

if TYPE_CHECKING:
    from agentrl.store.find import Selection
    from agentrl.store.store import Store


def add_selection(parser: argparse._ActionsContainer, endings: Sequence[str]) -> None:
    """What is given must all hold. `endings`: what --stop-reason may be."""
    parser.add_argument(
        "--run", dest="of_run", metavar="RUN", help="of this run: its id, the beginning of it, or its folder's name"
    )
    parser.add_argument("--step", type=int, metavar="N", help="that step N of --run trained on, whoever sampled it")
    parser.add_argument("--version", type=int, metavar="N", help="of which version N of --run sampled some ids")
    parser.add_argument("--env", metavar="NAME", help="of this environment")
    parser.add_argument("--stop-reason", choices=endings, metavar="REASON", help="that ended so")
    parser.add_argument("--purpose", choices=PURPOSES, help="played for this")
    parser.add_argument("--min-reward", type=float, metavar="R", help="with at least this reward, by the latest grade")
    parser.add_argument("--max-reward", type=float, metavar="R", help="with at most this reward, by the latest grade")
    parser.add_argument(
        "--call", choices=CALLS, metavar="STATUS", help="in which a tool call ended so; failed: any that went wrong"
    )
    parser.add_argument("--text", help="in which this was written, asked or given by a tool, in upper or lower case")


def selection(store: Store, options: argparse.Namespace) -> Selection:
    """What is asked for. Raises ConfigError for what can't be, NotStored for an unknown run."""
    return Wanted(
        run=options.of_run,
        step=options.step,
        version=options.version,
        env=options.env,
        stop_reason=options.stop_reason,
        purpose=options.purpose,
        min_reward=options.min_reward,
        max_reward=options.max_reward,
        call=options.call,
        text=options.text,
    ).selection(store)
