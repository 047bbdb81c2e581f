"""Records that can't be read, found one by one: the damaged ones are named, the rest stays readable."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import JSON, ColumnElement, Connection, Row, RowMapping, Text, and_, cast, select, tuple_
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from agentrl.store import values
from agentrl.store.blobs import content_hash
from agentrl.store.faults import is_down, text_of
from agentrl.store.records import ClaimState, RunStatus, StepState
from agentrl.store.sealing import unseal
from agentrl.store.tables import (
    ArtifactData,
    ArtifactFiles,
    Base,
    Blobs,
    Claims,
    EngineCalls,
    Grades,
    Groups,
    Runs,
    StepRows,
    Steps,
    Tasks,
    ToolCalls,
    Trajectories,
    Turns,
    Versions,
    table,
)
from agentrl.types import Artifacts, GroupState, Purpose, StopReason

Record = Mapping[Any, Any]
PAGE = 200
"""Records that are read at once."""
UNREADABLE = (ValueError, KeyError, TypeError, struct.error)
"""What reading a damaged record raises."""


class Damage(NamedTuple):
    """A record that isn't as it was written."""

    table: str
    record: str
    """Its key: `trajectory_id=…, turn=3`."""
    what: str

    def __str__(self) -> str:
        return f"{self.table}: {self.record}: {self.what}"


def damaged(connection: Connection, model: type[Base], *conditions: ColumnElement[bool]) -> Iterator[Damage]:
    """The records of a table, of those that meet the conditions, that can't be read or disagree with themselves."""
    key = list(table(model).primary_key.columns)
    last: Row[Any] | None = None
    while True:
        page = select(*key).where(*conditions).order_by(*key).limit(PAGE)
        if last is not None:
            page = page.where(tuple_(*key) > tuple_(*last))
        keys = connection.execute(page).all()
        if not keys:
            return
        first, last = keys[0], keys[-1]
        span = and_(tuple_(*key) >= tuple_(*first), tuple_(*key) <= tuple_(*last), *conditions)
        if not _is_good(connection, model, span, len(keys)):
            yield from _named_damage(connection, model, keys)


def _is_good(connection: Connection, model: type[Base], span: ColumnElement[bool], num: int) -> bool:
    """Can a whole page be read, at once? It nearly always can."""
    try:
        records = connection.execute(select(*_as_text(model)).where(span)).mappings().all()
        for record in records:
            READERS[model](_parsed(model, record))
    except (*UNREADABLE, SQLAlchemyError) as error:
        if isinstance(error, SQLAlchemyError) and is_down(error):
            raise
        return False
    return len(records) == num


def _named_damage(connection: Connection, model: type[Base], keys: Sequence[Row[Any]]) -> Iterator[Damage]:
    for key in keys:
        problem = _problem(connection, model, key)
        if problem is not None:
            yield Damage(model.__tablename__, named(key), problem)


def named(key: Row[Any]) -> str:
    """A record's key as text."""
    values = {name: value.hex() if isinstance(value, bytes) else value for name, value in key._mapping.items()}
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _problem(connection: Connection, model: type[Base], key: Row[Any]) -> str | None:
    columns = table(model).primary_key.columns
    here = and_(*(column == value for column, value in zip(columns, key, strict=True)))
    try:
        record = connection.execute(select(*_as_text(model)).where(here)).mappings().one()
        READERS[model](_parsed(model, record))
    except UNREADABLE as error:
        return str(error) or type(error).__name__
    except SQLAlchemyError as error:
        if is_down(error):
            raise
        return text_of(error)
    return None


def _as_text(model: type[Base]) -> list[ColumnElement[Any]]:
    """The columns; JSON as text, since the driver wouldn't say which record it couldn't parse."""
    return [cast(c, Text).label(c.name) if isinstance(c.type, JSON) else c for c in table(model).columns]


def _parsed(model: type[Base], record: RowMapping) -> dict[str, Any]:
    """The record with its JSON parsed. Raises ValueError that names the column."""
    parsed = dict(record)
    for column in table(model).columns:
        if isinstance(column.type, JSON) and parsed[column.name] is not None:
            try:
                parsed[column.name] = json.loads(parsed[column.name])
            except ValueError as error:
                raise ValueError(f"{column.name} is no JSON: {error}") from error
    return parsed


def _read_run(record: Record) -> None:
    RunStatus(unseal(record)["status"])


def _read_version(record: Record) -> None:
    if (record["parent_run_id"], record["parent_version"]) == (record["run_id"], record["id"]):
        raise ValueError("it is its own parent")


def _read_step(record: Record) -> None:
    StepState(unseal(record)["state"])


def _read_task(record: Record) -> None:
    task = values.read_task(record)
    if record["key"] != task.key:
        raise ValueError(f"the key of its content is {task.key}, not {record['key']}")
    identity = values.task_identity(task)
    if record["identity"] != identity:
        raise ValueError(f"the identity of its content is {identity}")


def _read_group(record: Record) -> None:
    unseal(record)
    GroupState(record["state"])
    Purpose(record["purpose"])


def _read_trajectory(record: Record) -> None:
    unseal(record)
    if record["stop_reason"] is not None:
        StopReason(record["stop_reason"])
        if record["finished_at"] is None:
            raise ValueError(f"it ended as {record['stop_reason']} at no time")


def _read_turn(record: Record) -> None:
    turn = values.read_turn(record, [], [], None)
    if len(turn.sampled_ids) != len(turn.logprobs):
        raise ValueError(f"{len(turn.sampled_ids)} sampled ids, but {len(turn.logprobs)} logprobs")


def _read_blob(record: Record) -> None:
    hash = content_hash(record["content"])
    if record["hash"] != hash:
        raise ValueError(f"the hash of its content is {hash.hex()}")


def _read_step_row(record: Record) -> None:
    for start, end, weight, reason in values.read_step_row(record).weights:
        if not 0 <= start < end or (weight == 0 and not reason):
            raise ValueError(f"ids [{start}, {end}) have weight {weight}, reason {reason!r}")


READERS: dict[type[Base], Callable[[Record], object]] = {
    Runs: _read_run,
    Versions: _read_version,
    Tasks: _read_task,
    Steps: _read_step,
    Groups: _read_group,
    Claims: lambda record: ClaimState(record["state"]),
    Blobs: _read_blob,
    Trajectories: _read_trajectory,
    Turns: _read_turn,
    EngineCalls: values.read_engine_call,
    ToolCalls: values.read_tool_call,
    ArtifactData: lambda record: Artifacts(data=unseal(record)["data"]),
    ArtifactFiles: lambda record: Artifacts(files={unseal(record)["name"]: record["content"]}),
    Grades: values.read_grade,
    StepRows: _read_step_row,
}
"""Every table, and what raises where a record of it is damaged."""

OF_TRAJECTORY = (Turns, EngineCalls, ToolCalls, ArtifactData, ArtifactFiles, Grades)
"""Tables whose records belong to one trajectory."""


def damage_of(connection: Connection, trajectories: list[str]) -> Iterator[Damage]:
    """What is damaged of these trajectories, their tasks among it."""
    yield from damaged(connection, Trajectories, Trajectories.id.in_(trajectories))
    tasks = select(Trajectories.task).where(Trajectories.id.in_(trajectories))
    yield from damaged(connection, Tasks, Tasks.identity.in_(tasks))
    for model in OF_TRAJECTORY:
        yield from damaged(connection, model, table(model).c.trajectory_id.in_(trajectories))


@contextmanager
def damage_named(connection: Connection, trajectories: Sequence[str]) -> Iterator[None]:
    """What can't be read of these trajectories leaves as a ValueError that names the record."""
    try:
        yield
    except (*UNREADABLE, OperationalError) as error:
        if is_down(error):
            raise
        raise ValueError(next(damage_of(connection, list(trajectories)), error)) from error
