"""Is everything in a database as it was written? Hashes and lengths are computed again; each bad record is named.

`agentrl.testing.audit` asks another question: whether the runs kept their promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import Connection, ForeignKeyConstraint, Select, and_, select
from sqlalchemy.orm import aliased

from agentrl.errors import StoreError
from agentrl.store.damage import READERS, UNREADABLE, Damage, damage_of, damaged, named
from agentrl.store.parts import check_lengths, check_parent
from agentrl.store.reading import load_sample
from agentrl.store.sealing import seal
from agentrl.store.tables import Base, Grades, StepRows, Trajectories, table
from agentrl.store.values import read_step_row
from agentrl.types import Trajectory


def verify(connection: Connection) -> Iterator[Damage]:
    """Every record that can't be read, and all that doesn't fit together."""
    for model in READERS:
        yield from damaged(connection, model)
        yield from _dangling(connection, model)
    yield from _trajectories(connection)
    yield from _grades_of_others(connection)


def _dangling(connection: Connection, model: type[Base]) -> Iterator[Damage]:
    """Records that refer to records which are not there. SQLite doesn't see to it for whoever didn't ask."""
    for constraint in sorted(table(model).foreign_key_constraints, key=lambda one: str(one.name)):
        for key in connection.execute(_without_target(model, constraint)):
            target = ", ".join(column.name for column in constraint.columns)
            what = f"its {target} names no record of {constraint.referred_table.name}"
            yield Damage(model.__tablename__, named(key), what)


def _without_target(model: type[Base], constraint: ForeignKeyConstraint) -> Select[Any]:
    own, other = table(model), constraint.referred_table.alias("target")
    pairs = [(element.parent, other.c[element.column.name]) for element in constraint.elements]
    there = select(other).where(and_(*(column == target for column, target in pairs))).correlate(own)
    is_set = and_(*(column.is_not(None) for column, _ in pairs))
    return select(*own.primary_key.columns).where(is_set, ~there.exists())


def _trajectories(connection: Connection) -> Iterator[Damage]:
    """What only a trajectory's records together can tell. Those that can't be read by themselves were named already."""
    columns = (Trajectories.id, Trajectories.num_turns, Trajectories.num_sampled, Trajectories.env, Trajectories.reward)
    for id, num_turns, num_sampled, env, reward in connection.execute(select(*columns).order_by(Trajectories.id)).all():
        try:
            sample = load_sample(connection, id)
        except (*UNREADABLE, StoreError) as error:
            if next(damage_of(connection, [id]), None) is None:
                yield Damage("trajectories", f"id={id}", str(error))
            continue
        trajectory = sample.trajectory
        latest = None if sample.grade is None else sample.grade.reward
        if (env, reward) != (seal({"env": trajectory.task.env})["env"], latest):
            yield _damage(trajectory, f"it says env {env}, reward {reward}, but has {trajectory.task.env}, {latest}")
        counts = {"turns": (num_turns, len(trajectory.turns)), "sampled ids": (num_sampled, trajectory.num_sampled)}
        for name, (said, found) in counts.items():
            if said != found:
                yield _damage(trajectory, f"it says {said} {name}, but has {found}")
        yield from _turns(trajectory)
        yield from _rows(connection, trajectory)


def _turns(trajectory: Trajectory) -> Iterator[Damage]:
    for place, turn in enumerate(trajectory.turns):
        for check in (partial(check_lengths, trajectory.id, turn), partial(check_parent, trajectory, place)):
            try:
                check()
            except StoreError as error:
                yield _damage(trajectory, str(error))


def _rows(connection: Connection, trajectory: Trajectory) -> Iterator[Damage]:
    """The weights of a Row are over its ids."""
    query = select(table(StepRows)).where(StepRows.trajectory_id == trajectory.id)
    for record in connection.execute(query).mappings():
        row = read_step_row(record)
        if row.end_turn >= len(trajectory.turns):
            continue  # it dangles, and was named so
        length = trajectory.turns[row.end_turn].num_ids
        beyond = [span for span in row.weights if span[1] > length]
        if beyond:
            what = f"step {record['step_id']} of run {record['run_id']} weighs ids [{beyond[0][0]}, {beyond[0][1]})"
            yield _damage(trajectory, f"{what} of turn {row.end_turn}, which has {length}")


def _grades_of_others(connection: Connection) -> Iterator[Damage]:
    grade = aliased(Grades)
    query = select(*table(StepRows).primary_key.columns).join(grade, grade.id == StepRows.grade_id)
    for key in connection.execute(query.where(grade.trajectory_id != StepRows.trajectory_id)):
        yield Damage("step_rows", named(key), "its grade is another trajectory's")


def _damage(trajectory: Trajectory, what: str) -> Damage:
    return Damage("trajectories", f"id={trajectory.id}", what)
