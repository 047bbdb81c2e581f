"""Looking after a database: how much of what is in it, and what may go."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Boolean, ColumnElement, Connection, Numeric, Select, and_, delete, func, literal, or_, select
from sqlalchemy.orm import aliased

from agentrl.errors import StoreError
from agentrl.store.damage import OF_TRAJECTORY
from agentrl.store.database import num_bytes
from agentrl.store.records import ClaimState, RunStatus
from agentrl.store.tables import (
    ArtifactFiles,
    Base,
    Blobs,
    Claims,
    Groups,
    Runs,
    StepRows,
    Steps,
    Tasks,
    Trajectories,
    Turns,
    Versions,
    table,
)
from agentrl.types import GroupState

IDS_AT_ONCE = 500


class TableStats(NamedTuple):
    """How much a table holds."""

    table: str
    num_records: int
    num_bytes: int
    """Of what is stored, without indexes and the database's own overhead."""


class RunStats(NamedTuple):
    """How much a run holds."""

    run: str
    name: str
    status: RunStatus
    num_groups: int
    num_trajectories: int
    num_turns: int
    num_sampled: int
    num_bytes: int
    """Of its turns, which are nearly everything."""
    num_steps: int


def table_stats(connection: Connection) -> list[TableStats]:
    """Every table, the largest first."""
    found = []
    for name, its in Base.metadata.tables.items():
        query = select(func.count(), func.coalesce(func.sum(_record_bytes(its)), 0)).select_from(its)
        num, size = connection.execute(query).one()
        found.append(TableStats(name, num, int(size)))
    return sorted(found, key=lambda stats: (-stats.num_bytes, stats.table))


def run_stats(connection: Connection) -> list[RunStats]:
    """Every run, the newest first."""
    runs = connection.execute(select(Runs.id, Runs.name, Runs.status).order_by(Runs.started_at.desc(), Runs.id))
    return [_run_stats(connection, id, name, RunStatus(status)) for id, name, status in runs.all()]


def _run_stats(connection: Connection, run: str, name: str, status: RunStatus) -> RunStats:
    def count(model: type[Base]) -> int:
        return connection.scalar(select(func.count()).select_from(model).where(table(model).c.run_id == run)) or 0

    num_groups, num_trajectories, num_steps = count(Groups), count(Trajectories), count(Steps)
    turns = select(func.count(), func.coalesce(func.sum(_record_bytes(table(Turns))), 0))
    turns = turns.join(Trajectories, Trajectories.id == Turns.trajectory_id).where(Trajectories.run_id == run)
    num_turns, size = connection.execute(turns).one()
    sampled = connection.scalar(select(func.sum(Trajectories.num_sampled)).where(Trajectories.run_id == run)) or 0
    return RunStats(run, name, status, num_groups, num_trajectories, num_turns, int(sampled), int(size), num_steps)


def _record_bytes(its: Any) -> ColumnElement[Any]:
    """Bytes of a record: 8 for a number, 1 for a truth value, else as many as there are."""
    size: ColumnElement[Any] = literal(0)
    for column in its.columns:
        fixed = 1 if isinstance(column.type, Boolean) else 8
        is_fixed = isinstance(column.type, Boolean | Numeric) or column.type.python_type is int
        size = size + (fixed if is_fixed else func.coalesce(num_bytes(column), 0))
    return size


class Garbage(NamedTuple):
    """What may go, or went."""

    runs: list[str]
    trajectories: list[str]
    """Those of no run in `runs`."""
    num_tasks: int
    """Tasks that nothing else refers to."""


def garbage(connection: Connection, *, runs: Sequence[str], dead: Collection[str], older_than_s: float) -> Garbage:
    """Whole runs, where they are named; else rollouts that nobody trained on and nobody will.

    Those are the rollouts of dropped groups, and of groups that were archived without having been claimed (their
    version was abandoned), which ended more than `older_than_s` ago and that no step, fork or running run knows.
    `dead`: runs that are running by their record, but whose process is known to be gone. Raises StoreError for a run
    that is running or that another run depends on.
    """
    for run in runs:
        if connection.scalar(select(Runs.status).where(Runs.id == run)) == RunStatus.RUNNING and run not in dead:
            raise StoreError(f"run {run} is running, maybe on another machine; stop it first")
        _check_removable(connection, run, runs)
    return Garbage(
        list(runs),
        [] if runs else list(connection.scalars(_unused(time.time() - older_than_s))),
        connection.scalar(select(func.count()).select_from(_orphans(runs).subquery())) or 0,
    )


def remove(connection: Connection, found: Garbage) -> None:
    """Delete it with all that belongs to it, in an order in which no record refers to one that is gone."""
    _remove_of(connection, found.runs, StepRows, Claims)
    forks_first = Trajectories.forked_from_trajectory.is_(None), Trajectories.started_at.desc()
    of_runs = select(Trajectories.id).where(Trajectories.run_id.in_(found.runs)).order_by(*forks_first)
    _remove_trajectories(connection, [*found.trajectories, *connection.scalars(of_runs)])
    _remove_of(connection, found.runs, Steps, Groups, Versions)
    connection.execute(delete(table(Runs)).where(Runs.id.in_(found.runs)))
    # Whoever is about to refer to one of these has locked it; what came of that, only a second query sees.
    connection.execute(_orphans([]).with_for_update())
    connection.execute(delete(table(Tasks)).where(Tasks.identity.in_(_orphans([]))))
    connection.execute(_unreferenced().with_for_update())
    connection.execute(delete(table(Blobs)).where(Blobs.hash.in_(_unreferenced())))


def _remove_of(connection: Connection, runs: Sequence[str], *models: type[Base]) -> None:
    for model in models:
        connection.execute(delete(table(model)).where(table(model).c.run_id.in_(runs)))


def _unused(before: float) -> Select[str]:
    fork, running = aliased(Trajectories), RunStatus.RUNNING.value
    claimed = select(Claims.id).where(Claims.group_id == Groups.id, Claims.state != ClaimState.RELEASED.value)
    over = or_(
        Groups.state == GroupState.DROPPED.value, and_(Groups.state == GroupState.ARCHIVED.value, ~claimed.exists())
    )
    return (
        select(Trajectories.id)
        .join(Groups, Groups.id == Trajectories.group_id)
        .join(Runs, Runs.id == Trajectories.run_id)
        .where(over, Trajectories.finished_at < before, Runs.status != running)
        .where(~select(StepRows.position).where(StepRows.trajectory_id == Trajectories.id).exists())
        .where(~select(fork.id).where(fork.forked_from_trajectory == Trajectories.id).exists())
        .order_by(Trajectories.id)
    )


def _orphans(runs: Collection[str]) -> Select[str]:
    """Tasks that nothing refers to once `runs` are gone."""
    planned = select(Groups.id).where(Groups.task == Tasks.identity, Groups.run_id.not_in(runs))
    played = select(Trajectories.id).where(Trajectories.task == Tasks.identity, Trajectories.run_id.not_in(runs))
    return select(Tasks.identity).where(~planned.exists(), ~played.exists())


def _unreferenced() -> Select[bytes]:
    """Blobs that nothing refers to."""
    query = select(Blobs.hash)
    for column in (Turns.prompt_ids_hash, Turns.prompt_messages_hash, ArtifactFiles.content_hash):
        query = query.where(~select(column).where(column == Blobs.hash).exists())
    return query


def _check_removable(connection: Connection, run: str, gone: Collection[str]) -> None:
    """Raises StoreError where something that stays refers to the run."""
    users: dict[str, Select[Any]] = {
        "trains on its rollouts": select(StepRows.run_id)
        .join(Trajectories, Trajectories.id == StepRows.trajectory_id)
        .where(Trajectories.run_id == run, StepRows.run_id.not_in(gone)),
        "claims its groups": select(Claims.run_id)
        .join(Groups, Groups.id == Claims.group_id)
        .where(Groups.run_id == run, Claims.run_id.not_in(gone)),
        "starts from its weights": select(Versions.run_id).where(
            Versions.parent_run_id == run, Versions.run_id.not_in(gone)
        ),
    }
    origin = aliased(Trajectories)
    users["goes on from its rollouts"] = (
        select(Trajectories.run_id)
        .join(origin, origin.id == Trajectories.forked_from_trajectory)
        .where(origin.run_id == run, Trajectories.run_id.not_in(gone))
    )
    for what, query in users.items():
        user = connection.scalar(query.limit(1))
        if user is not None:
            raise StoreError(f"run {run} has to stay: run {user} {what}; remove that one with it, or first")


def _remove_trajectories(connection: Connection, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = ids[start : start + IDS_AT_ONCE]
        for model in reversed(OF_TRAJECTORY):
            its = table(model)
            connection.execute(delete(its).where(its.c.trajectory_id.in_(some)))
        connection.execute(delete(table(Trajectories)).where(Trajectories.id.in_(some)))
