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
from agentrl.cli.selection import add_selection, selection
from agentrl.errors import ConfigError
from agentrl.interrupts import Terminated
from agentrl.types import StopReason
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
    which.add_argument("--group", help="of a group")
    which.add_argument("--split", help="whose task is of this split")
    add_selection(which, [str(reason) for reason in StopReason])
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
    which = selection(store, options)
    which["ids"] = [store.resolve("trajectory", id) for id in options.ids] or None
    which["group"] = None if options.group is None else store.resolve("group", options.group)
    which["split"] = options.split
    return which


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
