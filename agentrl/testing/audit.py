"""Does a database keep its promises? An independent checker, by plain SQL and without the store's code.

    python -m agentrl.testing.audit DATABASE [RUN]        prints violations, one a line; exit code 1 if there are any

What it looks for holds at any instant, also after kill -9 in the middle of anything; only what is in `OF_COMPLETED`
waits until a run has reached its end. The invariants behind it: nothing that was finished is torn, and nothing is
trained twice on the surviving line (S1); one ending per rollout (R1); lengths agree (T5); a weight of 0 has a reason
(T3).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from agentrl.errors import AgentRLError, StoreError
from agentrl.testing.audit_queries import OF_COMPLETED, QUERIES
from agentrl.urls import hide_passwords


class Violation(NamedTuple):
    """A promise that the database breaks."""

    name: str
    """A key of `QUERIES` or `OF_COMPLETED`, or one of `LINES`."""
    run: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: run {self.run}: {self.detail}"


LINES = (
    "version_line", "step_line", "version_of_no_step", "weight_without_reason", "lengths_differ", "step_lost",
    "checkpoint_off_line",
)  # fmt: skip
"""Violations that are found by reading one record after another."""


def audit(database: str | Path, run: str | None = None, *, folders: bool = True) -> list[Violation]:
    """Every violation in a SQLite file or at a SQLAlchemy URL, of all runs or of one (its id or name).

    `folders`: also compare with the runs' folders where they are there. Raises StoreError where the database can't be
    read or has no such run.
    """
    with _connected(database) as connection:
        runs = _runs(connection, run)
        return [violation for record in runs for violation in _audit_run(connection, record, folders)]


def _audit_run(connection: Connection, run: Any, folders: bool) -> Iterator[Violation]:
    for name, query in {**QUERIES, **OF_COMPLETED}.items():
        found = text(f"WITH found (run, detail) AS ({query}) SELECT run, detail FROM found WHERE run = :run")
        for record in connection.execute(found, {"run": run.id}):
            yield Violation(name, record.run, record.detail)
    versions = _records(connection, "versions", run.id)
    steps = _records(connection, "steps", run.id)
    yield from _lines(run, [v for v in versions if not v.abandoned], [s for s in steps if not s.abandoned])
    yield from _weights(connection, run.id)
    yield from _lengths(connection, run.id)
    if folders and run.folder and Path(run.folder).is_dir():
        yield from _folder(run, Path(run.folder), versions, steps)


def _lines(run: Any, versions: Sequence[Any], steps: Sequence[Any]) -> Iterator[Violation]:
    """Surviving versions are one line from parent to child, and surviving steps follow it without a gap."""
    for before, after in pairwise(versions):
        if (after.parent_run_id, after.parent_version) != (run.id, before.id) or after.ordinal <= before.ordinal:
            yield Violation("version_line", run.id, f"version {after.id} does not follow version {before.id}")
    if versions and versions[0].parent_run_id == run.id:
        yield Violation("version_line", run.id, f"version {versions[0].id} has an abandoned parent")
    current = versions[0].id if versions else None
    for place, step in enumerate(steps):
        is_open = step.state != "recorded"
        may_be_open = place == len(steps) - 1 and run.status != "completed"
        if step.ordinal != place or step.version_before != current or (is_open and not may_be_open):
            what = f"step {step.id}: ordinal {step.ordinal}, {step.state}, from version {step.version_before}"
            yield Violation("step_line", run.id, f"{what}; due was ordinal {place} from version {current}")
        current = step.version_before if step.version_after is None else step.version_after
    made = {step.version_after for step in steps}
    unfinished = 1 if run.status != "completed" else 0  # a crash between the version and the record of its step
    for version in versions[1 : len(versions) - unfinished]:
        if version.id not in made:
            yield Violation("version_of_no_step", run.id, f"no surviving step made version {version.id}")


def _weights(connection: Connection, run: str) -> Iterator[Violation]:
    """A weight of 0 has a reason (T3)."""
    query = text("SELECT step_id, trajectory_id, weights FROM step_rows WHERE run_id = :run")
    for record in connection.execute(query, {"run": run}):
        weights = json.loads(record.weights) if isinstance(record.weights, str) else record.weights
        for start, end, weight, reason in weights:
            if weight == 0 and not reason:
                what = f"step {record.step_id}, trajectory {record.trajectory_id}: ids [{start}, {end})"
                yield Violation("weight_without_reason", run, f"{what} have weight 0 without a reason")


def _lengths(connection: Connection, run: str) -> Iterator[Violation]:
    """There is a logprob for each sampled id (T5). An id's last byte is below 128, a logprob has four bytes."""
    query = text(
        "SELECT u.trajectory_id, u.turn, u.sampled_ids, u.logprobs FROM turns u "
        "JOIN trajectories t ON t.id = u.trajectory_id WHERE t.run_id = :run"
    )
    for record in connection.execute(query, {"run": run}):
        num_ids = sum(byte < 128 for byte in bytes(record.sampled_ids))
        if 4 * num_ids != len(record.logprobs) or bytes(record.sampled_ids)[-1:] >= b"\x80":
            what = f"trajectory {record.trajectory_id}, turn {record.turn} has {num_ids} whole ids"
            yield Violation("lengths_differ", run, f"{what}, but {len(record.logprobs)} bytes of logprobs")


def _folder(run: Any, folder: Path, versions: Sequence[Any], steps: Sequence[Any]) -> Iterator[Violation]:
    """What the folder says was reached is in the database, and the run would go on from a surviving version."""
    recorded = [step.ordinal for step in steps if step.state == "recorded"]
    told = [event["ordinal"] for event in _events(folder / "metrics.jsonl") if event["kind"] in ("step", "sft")]
    for ordinal in sorted(set(told)):
        if told.count(ordinal) > recorded.count(ordinal):
            yield Violation(
                "step_lost", run.id, f"metrics.jsonl has more steps of ordinal {ordinal} than were recorded"
            )
    newest = max(_checkpoints(folder), key=lambda record: int(record["saved_at_ns"]), default=None)
    if newest is None:
        return
    state, survivors = newest["state"], {version.id for version in versions if not version.abandoned}
    done = {step.id for step in steps if step.state == "recorded" and not step.abandoned} | {None}
    if state["version"] not in survivors or state["last_step"] not in done:
        what = f"the newest checkpoint holds version {state['version']} after step {state['last_step']}"
        yield Violation("checkpoint_off_line", run.id, f"{what}, which the surviving line does not have")


def _events(metrics: Path) -> Iterator[dict[str, Any]]:
    """The events of a metrics file; a line that a kill cut short is no event."""
    lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.is_file() else []
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _checkpoints(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of the checkpoints in a run's folder; hidden folders are half-written ones."""
    for path in sorted((folder / "checkpoints").glob("[!.]*/state.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if {"state", "saved_at_ns"} <= set(record):
            yield record


def _records(connection: Connection, table: str, run: str) -> Sequence[Any]:
    return connection.execute(text(f"SELECT * FROM {table} WHERE run_id = :run ORDER BY id"), {"run": run}).all()


def _runs(connection: Connection, run: str | None) -> Sequence[Any]:
    runs = connection.execute(text("SELECT id, name, status, folder FROM runs ORDER BY started_at")).all()
    chosen = [record for record in runs if run in (None, record.id, record.name)]
    if run is not None and not chosen:
        raise StoreError(f"no run {run!r} in the database; it has {', '.join(record.id for record in runs) or 'none'}")
    return chosen


_SHORT = re.compile(r"^postgres(ql)?://")
"""Means the store's driver here too."""


@contextmanager
def _connected(database: str | Path) -> Iterator[Connection]:
    """A connection whose errors are StoreErrors; a file that isn't there isn't made."""
    name = str(database)
    if "://" not in name and not Path(name).is_file():
        raise StoreError(f"{name}: no database there; give the path of its file")
    try:
        url = _SHORT.sub("postgresql+psycopg://", name) if "://" in name else f"sqlite:///{name}"
        engine = create_engine(url, hide_parameters=True)
        try:
            with closing(engine.connect()) as connection:
                yield connection
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise StoreError(f"{hide_passwords(name)}: {cause}; is it a database of agentrl?") from error


def main(arguments: Sequence[str]) -> int:
    """Print the violations; 0: none, 1: some, 2: the database can't be read."""
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m agentrl.testing.audit DATABASE [RUN]", file=sys.stderr)
        return 2
    try:
        violations = audit(*arguments)
    except AgentRLError as error:
        print(f"audit: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, violations)) if violations else "no violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
