"""`agentrl db stats | verify | gc | migrate`: looking after a database."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.columns import print_table
from agentrl.cli.common import add_db_argument, existing_database, run_async
from agentrl.interrupts import locked
from agentrl.visible import one_line

if TYPE_CHECKING:
    from agentrl.store.store import Store
    from agentrl.store.upkeep import Garbage

DAY_S = 24 * 3600.0
ACTIONS = {
    "stats": "records and bytes, by table and by run",
    "verify": "compute hashes and lengths again; name each bad record; exit code 1 if there are any",
    "gc": "show what nobody needs any more; delete it with --yes",
    "migrate": "upgrade the tables to the schema of this agentrl (opening the database does it too)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, summary in ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary)
        add_db_argument(action)
        if name == "gc":
            _add_gc_arguments(action)


def _add_gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", dest="runs", action="append", default=[], metavar="RUN", help="this whole run instead; may be repeated"
    )
    parser.add_argument(
        "--older-than", type=float, default=30.0, metavar="DAYS", help="rollouts that ended before (30)"
    )
    parser.add_argument("--yes", action="store_true", help="delete it; without this nothing is deleted")


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    database = existing_database(options.db)
    if options.action == "migrate":
        migrated = Store.migrate(database)
        has = f"has schema {migrated.after}"
        print(f"{has} already" if migrated.before == migrated.after else f"{has} now, had {migrated.before or 'none'}")
        return 0
    act: Callable[[Store, argparse.Namespace], int] = {"stats": _stats, "verify": _verify, "gc": _gc}[options.action]
    with Store.open(database) as store:
        return act(store, options)


def _stats(store: Store, options: argparse.Namespace) -> int:
    tables = store.table_stats()
    print(store.location)
    print_table(["table", "records", "bytes"], [[one.table, one.num_records, one.num_bytes] for one in tables])
    print(f"total  {sum(one.num_bytes for one in tables):,} bytes, without indexes\n")
    columns = ["run", "name", "status", "groups", "rollouts", "turns", "sampled ids", "bytes of turns", "steps"]
    print_table(columns, [[_cell(value) for value in one] for one in store.run_stats()])
    return 0


def _verify(store: Store, options: argparse.Namespace) -> int:
    num_bad = 0
    for damage in store.verify():
        num_bad += 1
        print(one_line(str(damage)))
    print(f"{num_bad} bad records" if num_bad else f"every one of {_num_records(store):,} records is as it was written")
    return 1 if num_bad else 0


def _num_records(store: Store) -> int:
    return sum(one.num_records for one in store.table_stats())


def _gc(store: Store, options: argparse.Namespace) -> int:
    runs = [store.find_run(name) for name in options.runs]
    with ExitStack() as locks:
        dead = []
        for record in runs:
            folder = Path(record.folder)
            if record.folder and folder.is_dir():
                locks.enter_context(locked(folder))  # nobody resumes it meanwhile
                dead.append(record.id)
            elif record.config.get("command") == "import":
                dead.append(record.id)  # nobody resumes one; one that is going on fails at its next write
        ids, older_than_s = [record.id for record in runs], options.older_than * DAY_S
        if options.yes:
            removed = run_async(store.remove_garbage(runs=ids, dead=dead, older_than_s=older_than_s))
            print(f"deleted {_garbage_text(removed)}")
        else:
            found = store.garbage(runs=ids, dead=dead, older_than_s=older_than_s)
            print(f"would delete {_garbage_text(found)}; add --yes to do it")
    return 0


def _garbage_text(found: Garbage) -> str:
    runs = f"run {', '.join(found.runs)} with all its records, " if found.runs else ""
    return f"{runs}{len(found.trajectories)} rollouts that nobody uses, {found.num_tasks} tasks that nobody refers to"


def _cell(value: object) -> str | int:
    return value if isinstance(value, int) else str(value)
