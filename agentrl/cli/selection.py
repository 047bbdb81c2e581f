"""The options by which commands choose among the stored trajectories."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError
from agentrl.types import Purpose, StopReason

if TYPE_CHECKING:
    from agentrl.store.find import Selection
    from agentrl.store.store import Store

RUNNING = "running"
"""In the place of a stop reason: there is none yet."""


def add_selection(parser: argparse._ActionsContainer, endings: Sequence[str]) -> None:
    """What is given must all hold. `endings`: what --stop-reason may be."""
    parser.add_argument(
        "--run", dest="of_run", metavar="RUN", help="of this run: its id, the beginning of it, or its folder's name"
    )
    parser.add_argument("--step", type=int, metavar="N", help="that step N of --run trained on, whoever sampled it")
    parser.add_argument("--env", metavar="NAME", help="of this environment")
    parser.add_argument("--stop-reason", choices=endings, metavar="REASON", help="that ended so")
    parser.add_argument("--purpose", choices=[str(purpose) for purpose in Purpose], help="played for this")
    parser.add_argument("--min-reward", type=float, metavar="R", help="with at least this reward, by the latest grade")
    parser.add_argument("--max-reward", type=float, metavar="R", help="with at most this reward, by the latest grade")
    parser.add_argument("--text", help="in which this was written, asked or given by a tool, in upper or lower case")


def selection(store: Store, options: argparse.Namespace) -> Selection:
    """What is asked for. Raises ConfigError for what can't be, StoreError for an unknown run.

    A step's trajectories may be another run's: with --step, --run is who trained on them.
    """
    low, high = options.min_reward, options.max_reward
    if low is not None and high is not None and low > high:
        raise ConfigError(f"no reward is at least {low:g} (--min-reward) and at most {high:g} (--max-reward)")
    if options.step is not None and options.of_run is None:
        raise ConfigError("--step needs the run that trained: add --run; `agentrl runs` lists them")
    run = None if options.of_run is None else store.find_run(options.of_run).id
    step = None if run is None or options.step is None else (run, options.step)
    if step and step[1] not in {one.id for one in store.steps(step[0])}:
        raise ConfigError(f"run {run} has no step {options.step}; agentrl runs {run} tells what it has")
    reason = options.stop_reason
    return {
        "run": None if step else run,
        "step": step,
        "env": options.env,
        "stop_reason": StopReason(reason) if reason not in (None, RUNNING) else reason,
        "purpose": options.purpose and Purpose(options.purpose),
        "min_reward": low,
        "max_reward": high,
        "text": options.text,
    }
