"""From a trajectory to the steps that used it (S2), and how old it was then."""

from __future__ import annotations

from sqlalchemy import Connection, and_, func, select

from agentrl.store.damage import damage_named
from agentrl.store.records import StepUse
from agentrl.store.tables import EngineCalls, Grades, StepRows, Steps, Trajectories, Turns, Versions, table
from agentrl.store.values import read_grade, read_step_row
from agentrl.types import Grade

Version = tuple[str, int]
"""(run, id)."""


def steps_of(connection: Connection, trajectory: str) -> list[StepUse]:
    """Every Row of the trajectory that a step trained on, of any run."""
    of_step = and_(Steps.run_id == StepRows.run_id, Steps.id == StepRows.step_id)
    query = select(table(StepRows), Steps.ordinal, Steps.abandoned, Steps.version_before, Steps.version_after)
    query = query.join(Steps, of_step).where(StepRows.trajectory_id == trajectory)
    records = connection.execute(query.order_by(*table(StepRows).primary_key.columns)).mappings().all()
    sampled = _oldest_version(connection, trajectory)
    return [
        StepUse(
            run=record["run_id"],
            step=record["step_id"],
            row=read_step_row(record),
            staleness=_age(connection, sampled, (record["run_id"], record["version_before"])),
            **{name: record[name] for name in ("ordinal", "abandoned", "version_before", "version_after")},
        )
        for record in records
    ]


def grades_of(connection: Connection, trajectory: str) -> dict[int, Grade]:
    """All grades of the trajectory by id; the last one is the latest."""
    query = select(table(Grades)).where(Grades.trajectory_id == trajectory).order_by(Grades.id)
    with damage_named(connection, [trajectory]):
        return {record["id"]: read_grade(record) for record in connection.execute(query).mappings()}


def _oldest_version(connection: Connection, trajectory: str) -> Version | None:
    """Of those that sampled its trained turns."""
    of_turn = and_(Turns.trajectory_id == EngineCalls.trajectory_id, Turns.turn == EngineCalls.turn, Turns.trained)
    query = select(Trajectories.run_id, func.min(EngineCalls.version))
    query = query.join(EngineCalls, EngineCalls.trajectory_id == Trajectories.id).join(Turns, of_turn)
    found = connection.execute(query.where(Trajectories.id == trajectory).group_by(Trajectories.run_id)).one_or_none()
    return None if found is None else (found[0], found[1])


def _age(connection: Connection, sampled: Version | None, used: Version) -> int | None:
    """Versions from `sampled` to `used`, from child to parent; None where it isn't on that line."""
    parents: dict[Version, Version] = {}
    seen_runs: set[str] = set()
    here, age = used, 0
    while here != sampled:
        if here[0] not in seen_runs:
            seen_runs.add(here[0])
            parents |= _parents(connection, here[0])
        if here not in parents:
            return None
        # A run's first version is what it started from: the same weights as its parent in another run.
        parent = parents.pop(here)
        here, age = parent, age + (parent[0] == here[0])
    return age


def _parents(connection: Connection, run: str) -> dict[Version, Version]:
    query = select(Versions.id, Versions.parent_run_id, Versions.parent_version).where(Versions.run_id == run)
    found = connection.execute(query).all()
    return {(run, id): (parent_run, parent or 0) for id, parent_run, parent in found if parent_run is not None}
