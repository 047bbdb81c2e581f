"""Stored trajectories and groups, put together again. All functions read within the caller's transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select
from sqlalchemy.orm import InstrumentedAttribute

from agentrl.errors import NotStored
from agentrl.store import values
from agentrl.store.blobs import contents, restored
from agentrl.store.damage import damage_named
from agentrl.store.sealing import unseal
from agentrl.store.tables import (
    ArtifactData,
    ArtifactFiles,
    Base,
    EngineCalls,
    Grades,
    Groups,
    Tasks,
    ToolCalls,
    Trajectories,
    Turns,
    table,
)
from agentrl.types import Artifacts, EngineCall, Grade, Group, GroupState, ParsedCall, Purpose, Sample, Trajectory, Turn

CHUNK = 500
"""Ids per query: databases bound the number of parameters."""

TurnKey = tuple[str, int | None]


def load_trajectories(connection: Connection, ids: Sequence[str], *, outline: bool = False) -> list[Trajectory]:
    """The trajectories in the order of `ids`, equal to what was recorded; an `outline` has no turns and artifacts.

    Raises NotStored for a missing one, ValueError that names the record which is damaged.
    """
    found: dict[str, Trajectory] = {}
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        with damage_named(connection, chunk):
            found |= _load_chunk(connection, chunk, outline)
    missing = [id for id in ids if id not in found]
    if missing:
        raise NotStored(f"no trajectory {missing[0]!r} in the store")
    return [found[id] for id in ids]


def load_sample(connection: Connection, id: str) -> Sample:
    """One trajectory with its latest grade. Raises NotStored where it is missing."""
    return load_samples(connection, [id])[0]


def load_samples(connection: Connection, ids: Sequence[str]) -> list[Sample]:
    """The trajectories with their latest grades, in the order of `ids`. Raises as `load_trajectories` does."""
    with damage_named(connection, ids):
        grades = latest_grades(connection, ids)
    return [_sample(trajectory, grades) for trajectory in load_trajectories(connection, ids)]


def known(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Those of the ids that are a trajectory's."""
    return set(connection.scalars(select(Trajectories.id).where(Trajectories.id.in_(ids))))


def load_group(connection: Connection, group_id: str, *, outline: bool = False) -> Group:
    """The group with the final attempt of each sample that was begun, and their latest grades."""
    group = connection.execute(select(table(Groups)).where(Groups.id == group_id)).mappings().one_or_none()
    if group is None:
        raise NotStored(f"no group {group_id!r} in the store")
    ids = [record["id"] for record in final_attempts(connection, group_id)]
    trajectories = load_trajectories(connection, ids, outline=outline)
    grades = latest_grades(connection, ids)
    task = connection.execute(select(table(Tasks)).where(Tasks.identity == group["task"])).mappings().one()
    return Group(
        id=group["id"],
        run=group["run_id"],
        task=values.read_task(task),
        purpose=Purpose(group["purpose"]),
        ordinal=group["ordinal"],
        size=group["size"],
        state=GroupState(group["state"]),
        lease_generation=group["lease_generation"],
        reissue=group["reissue"],
        dropped_reason=unseal(group)["dropped_reason"],
        samples=[_sample(trajectory, grades) for trajectory in trajectories],
    )


def final_attempts(connection: Connection, group_id: str) -> list[RowMapping]:
    """For each sample its last attempt, by (reissue, attempt), in the order of samples: id, sample, stop_reason."""
    query = (
        select(Trajectories.id, Trajectories.sample, Trajectories.stop_reason)
        .where(Trajectories.group_id == group_id)
        .order_by(Trajectories.sample, Trajectories.reissue, Trajectories.attempt)
    )
    last = {record["sample"]: record for record in connection.execute(query).mappings()}
    return list(last.values())


def latest_grades(connection: Connection, trajectory_ids: Sequence[str]) -> dict[str, tuple[int, Grade]]:
    """The id and content of the latest grade of each trajectory that has one."""
    newest = select(func.max(Grades.id)).group_by(Grades.trajectory_id)
    found: dict[str, tuple[int, Grade]] = {}
    for start in range(0, len(trajectory_ids), CHUNK):
        ids = newest.where(Grades.trajectory_id.in_(trajectory_ids[start : start + CHUNK]))
        for record in connection.execute(select(table(Grades)).where(Grades.id.in_(ids))).mappings():
            found[record["trajectory_id"]] = (record["id"], values.read_grade(record))
    return found


def _sample(trajectory: Trajectory, grades: dict[str, tuple[int, Grade]]) -> Sample:
    grade_id, grade = grades.get(trajectory.id, (None, None))
    return Sample(trajectory=trajectory, grade=grade, grade_id=grade_id)


def _load_chunk(connection: Connection, ids: Sequence[str], outline: bool) -> dict[str, Trajectory]:
    turns = {} if outline else _load_turns(connection, ids)
    artifacts = {} if outline else _load_artifacts(connection, ids)
    records = list(connection.execute(select(table(Trajectories)).where(Trajectories.id.in_(ids))).mappings())
    identities = {record["task"] for record in records}
    query = select(table(Tasks)).where(Tasks.identity.in_(identities))
    tasks = {record["identity"]: values.read_task(record) for record in connection.execute(query).mappings()}
    return {
        record["id"]: values.read_trajectory(
            record, tasks[record["task"]], turns.get(record["id"], []), artifacts.get(record["id"], Artifacts())
        )
        for record in records
    }


def _load_turns(connection: Connection, ids: Sequence[str]) -> dict[str, list[Turn]]:
    calls: dict[TurnKey, list[EngineCall]] = defaultdict(list)
    tool_calls: dict[TurnKey, list[ParsedCall]] = defaultdict(list)
    for record in _records(connection, EngineCalls, EngineCalls.trajectory_id, ids):
        calls[record["trajectory_id"], record["turn"]].append(values.read_engine_call(record))
    for record in _records(connection, ToolCalls, ToolCalls.trajectory_id, ids):
        tool_calls[record["trajectory_id"], record["turn"]].append(values.read_tool_call(record))
    turns: dict[str, list[Turn]] = defaultdict(list)
    for whole in _restored(connection, Turns, ids, "prompt_ids", "prompt_messages"):
        key = (whole["trajectory_id"], whole["turn"])
        answers = values.answers_of(tool_calls[key[0], whole["parent"]])
        turns[key[0]].append(values.read_turn(whole, calls[key], tool_calls[key], answers))
    return turns


def _load_artifacts(connection: Connection, ids: Sequence[str]) -> dict[str, Artifacts]:
    artifacts: dict[str, Artifacts] = defaultdict(Artifacts)
    for record in _records(connection, ArtifactData, ArtifactData.trajectory_id, ids):
        artifacts[record["trajectory_id"]].data = unseal(record)["data"]
    for file in map(unseal, _restored(connection, ArtifactFiles, ids, "content")):
        artifacts[file["trajectory_id"]].files[file["name"]] = file["content"]
    return artifacts


def _restored(
    connection: Connection, model: type[Turns] | type[ArtifactFiles], ids: Sequence[str], *columns: str
) -> Iterator[dict[Any, Any]]:
    """As `_records`, with what `blobs` keeps of these columns."""
    records = list(_records(connection, model, model.trajectory_id, ids))
    blobs = contents(connection, (record[column + "_hash"] for record in records for column in columns))
    for record in records:
        yield dict(record) | {column: restored(record, column, blobs) for column in columns}


def _records(
    connection: Connection, model: type[Base], column: InstrumentedAttribute[str], ids: Sequence[str]
) -> Iterator[RowMapping]:
    """The records of `model` that belong to `ids`, in the order of their primary key."""
    query: Any = select(table(model)).where(column.in_(ids)).order_by(*table(model).primary_key.columns)
    yield from connection.execute(query).mappings()
