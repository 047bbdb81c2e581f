"""`agentrl export FORM TARGET [which]`: stored trajectories as a file for trainers, for other databases, for people."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from agentrl.cli.common import add_db_argument, existing_database
from agentrl.errors import ConfigError
from agentrl.interrupts import Terminated
from agentrl.types import Purpose, StopReason
from agentrl.visible import one_line

if TYPE_CHECKING:
    from agentrl.exchange.exporting import Exported, Order
    from agentrl.store.find import Selection
    from agentrl.store.store import Store

FORMS = ("messages", "tokens", "preferences", "trajectories")
COLUMNS = ("logprobs", "versions", "weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("form", choices=FORMS, help="what an example is")
    parser.add_argument("target", type=Path, help="NAME.jsonl, NAME.parquet, or NAME: a folder for `datasets`")
    add_db_argument(parser)
    which = parser.add_argument_group("which trajectories (all that is given must hold)")
    which.add_argument("--id", dest="ids", action="append", default=[], help="this one; may be repeated")
    which.add_argument("--run", dest="of_run", metavar="RUN", help="of a run: its folder's name, or its id")
    which.add_argument("--group", help="of a group")
    which.add_argument("--step", type=int, metavar="N", help="that this step of --run trained on")
    which.add_argument("--env", help="of an environment")
    which.add_argument("--split", help="whose task is of this split")
    which.add_argument("--purpose", choices=[str(one) for one in Purpose], help="of groups for this")
    which.add_argument("--stop-reason", choices=[str(one) for one in StopReason], help="that ended so")
    which.add_argument("--min-reward", type=float, help="by the latest grade")
    which.add_argument("--max-reward", type=float, help="by the latest grade")
    which.add_argument("--text", help="in which this was written, asked or given by a tool")
    which.add_argument("--best-of-group", action="store_true", help="of each group the one with the highest reward")
    how = parser.add_argument_group("how")
    how.add_argument("--with", dest="columns", choices=COLUMNS, nargs="+", default=[], help="of tokens: for each id")
    how.add_argument("--tools", metavar="FILE", help="JSON list of tool specs, in place of the environment's; or none")
    how.add_argument("--overwrite", action="store_true", help="replace the target")
    how.add_argument("--skip-damaged", action="store_true", help="leave out what can't be read")


def run(options: argparse.Namespace) -> int:
    from agentrl.exchange.exporting import export
    from agentrl.store.store import Store

    with Store.open(existing_database(options.db)) as store, stoppable():
        order = _order(store, options)
        done = export(store, order, options.target, overwrite=options.overwrite)
    for what in done.damaged:
        print(f"agentrl export: left out: {one_line(what)}", file=sys.stderr)
    print("\n".join(_report(done, options.target)))
    return 0


def _order(store: Store, options: argparse.Namespace) -> Order:
    """What the options say. Raises ConfigError for those that don't go together, StoreError for unknown ids."""
    from agentrl.exchange.examples import Column, Form
    from agentrl.exchange.exporting import Order

    form = Form(options.form)
    if options.columns and form is not Form.TOKENS:
        raise ConfigError(f"--with belongs to tokens; leave it out for {form}")
    if options.best_of_group and form is Form.PREFERENCES:
        raise ConfigError("--best-of-group: a preference pair has the best and the worst of a group; leave it out")
    return Order(
        form=form,
        which=_selection(store, options),
        columns=tuple(map(Column, options.columns)),
        best_of_group=options.best_of_group,
        tools=None if options.tools is None else _tools(options.tools),
        skip_damaged=options.skip_damaged,
    )


def _selection(store: Store, options: argparse.Namespace) -> Selection:
    """A step's trajectories may be another run's: with --step, --run is who trained on them."""
    if options.step is not None and options.of_run is None:
        raise ConfigError("--step N is a run's: add --run RUN")
    run = None if options.of_run is None else store.find_run(options.of_run).id
    step = None if run is None or options.step is None else (run, options.step)
    if step and options.step not in {one.id for one in store.steps(step[0])}:
        raise ConfigError(f"run {run} has no step {options.step}; agentrl runs {run} tells what it has")
    return {
        "ids": [store.resolve("trajectory", id) for id in options.ids] or None,
        "run": None if step else run,
        "group": None if options.group is None else store.resolve("group", options.group),
        "step": step,
        "env": options.env,
        "split": options.split,
        "purpose": options.purpose and Purpose(options.purpose),
        "stop_reason": options.stop_reason and StopReason(options.stop_reason),
        "min_reward": options.min_reward,
        "max_reward": options.max_reward,
        "text": options.text,
    }


def _tools(name: str) -> list[dict[str, Any]]:
    if name == "none":
        return []
    try:
        tools = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tools {name}: {error}; name a file with a JSON list of tool specs, or none") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"--tools {name}: a JSON list of objects was due, as the key tools of a chat request has it")
    return tools


def _report(done: Exported, target: Path) -> Iterator[str]:
    yield f"wrote {done.num_examples:,} examples from {done.num_trajectories:,} trajectories to {target}"
    yield "  splits    " + ", ".join(f"{one_line(split)} {num:,}" for split, num in done.splits.most_common())
    for reason, num in done.skipped.most_common():
        yield f"  left out  {num:,}: {reason}"
    if done.damaged:
        yield f"  left out  {len(done.damaged):,}: damaged"
    if done.num_cleaned:
        yield f"  cleaned   {done.num_cleaned:,}: text that is no Unicode has U+FFFD in its place; trajectories keep it"


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that what was begun is taken away. Raises Terminated."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # the only one that gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
