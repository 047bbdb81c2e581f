"""Questions about what is stored: lists of runs and trajectories, steps of a trajectory, ids from prefixes.

Summaries hold clean text, for reading; whole trajectories hold the original.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, func, select
from sqlalchemy.orm import aliased

from agentrl.errors import StoreError
from agentrl.store.records import RunRecord, RunStatus, StepRow, TrajectorySummary
from agentrl.store.sealing import unseal
from agentrl.store.tables import Grades, Groups, Runs, StepRows, Tasks, Trajectories, table
from agentrl.store.values import read_step_row
from agentrl.types import Purpose, StopReason
from agentrl.visible import visible

Kind = Literal["run", "group", "trajectory"]

_EARLIER = aliased(Grades)
_LATEST_GRADE = select(func.max(_EARLIER.id)).where(_EARLIER.trajectory_id == Trajectories.id).scalar_subquery()


def runs(connection: Connection) -> list[RunRecord]:
    """All runs, the newest first."""
    query = select(table(Runs)).order_by(Runs.started_at.desc(), Runs.id)
    return [_read_run(record) for record in connection.execute(query).mappings()]


def find_trajectories(
    connection: Connection,
    *,
    run: str | None,
    env: str | None,
    stop_reason: StopReason | Literal["running"] | None,
    purpose: Purpose | None,
    limit: int | None,
) -> list[TrajectorySummary]:
    """Summaries of the trajectories that match all that is given, the newest first."""
    query = _summaries().order_by(Trajectories.started_at.desc(), Trajectories.id).limit(limit)
    if run is not None:
        query = query.where(Trajectories.run_id == run)
    if env is not None:
        query = query.where(Tasks.env == env)
    if purpose is not None:
        query = query.where(Groups.purpose == purpose.value)
    if stop_reason is not None:
        query = query.where(_ended_as(stop_reason))
    return [_read_summary(record) for record in connection.execute(query).mappings()]


def rows_of(connection: Connection, run: str, step: int) -> list[StepRow]:
    """The Rows of a step in the order (batch, position)."""
    query = select(table(StepRows)).where(StepRows.run_id == run, StepRows.step_id == step)
    query = query.order_by(StepRows.batch, StepRows.position)
    return [read_step_row(record) for record in connection.execute(query).mappings()]


def resolve(connection: Connection, kind: Kind, prefix: str) -> str:
    """The one id that starts with `prefix`. Raises StoreError with the candidates where none or several do."""
    column = {"run": Runs.id, "group": Groups.id, "trajectory": Trajectories.id}[kind]
    prefix = visible(prefix)  # what isn't printable is in no id, and not every database takes it
    if connection.scalar(select(column).where(column == prefix)) is not None:
        return prefix
    query = select(column).where(column.startswith(prefix, autoescape=True)).order_by(column)
    matches = [id for id in connection.scalars(query.limit(_SHOWN * 100)) if id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StoreError(f"{prefix!r} is the start of {len(matches)} {kind} ids: {_listed(matches)}")
    known = list(connection.scalars(select(column).order_by(column).limit(_COMPARED)))
    near = get_close_matches(prefix, known, n=_SHOWN, cutoff=0.4) or known
    raise StoreError(f"no {kind} id starts with {prefix!r}; near: {_listed(near) if near else 'there are none'}")


_SHOWN = 8
"""Ids in a message."""
_COMPARED = 2000
"""Ids that are compared for likeness."""


def _listed(ids: list[str]) -> str:
    return ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")


def _ended_as(stop_reason: StopReason | Literal["running"]) -> ColumnElement[bool]:
    if stop_reason == "running":
        return Trajectories.stop_reason.is_(None)
    return Trajectories.stop_reason == stop_reason.value


def _summaries() -> Select[Any]:
    columns = table(Trajectories).c
    own = [columns[name] for name in _OWN]
    return (
        select(
            *own,
            Trajectories.run_id,
            Trajectories.group_id,
            Trajectories.stop_reason,
            Tasks.env,
            Tasks.id.label("task_id"),
            Tasks.split,
            Groups.purpose,
            Grades.reward,
            Grades.unmeasured,
        )
        .join(Tasks, Tasks.identity == Trajectories.task)
        .outerjoin(Groups, Groups.id == Trajectories.group_id)
        .outerjoin(Grades, Grades.id == _LATEST_GRADE)
    )


_OWN = ("id", "sample", "attempt", "reissue", "error", "num_turns", "num_sampled", "started_at", "finished_at")


def _read_summary(record: Any) -> TrajectorySummary:
    purpose, stop_reason = record["purpose"], record["stop_reason"]
    names = (*_OWN, "env", "task_id", "split", "reward", "unmeasured")
    return TrajectorySummary(
        run=record["run_id"],
        group=record["group_id"],
        purpose=None if purpose is None else Purpose(purpose),
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        **{name: record[name] for name in names},
    )


def _read_run(record: Any) -> RunRecord:
    values = unseal(record)
    return RunRecord(**values | {"status": RunStatus(values["status"])})
