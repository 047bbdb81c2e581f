"""Whole trajectories that are finished, written at once: what was made elsewhere, by the thousand."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection

from agentrl.errors import StoreError
from agentrl.store import values
from agentrl.store.blobs import insert_blobs
from agentrl.store.direct import find
from agentrl.store.leases import held_group
from agentrl.store.parts import (
    ADD_GRADE,
    ArtifactRecords,
    TurnRecords,
    artifact_records,
    check_place,
    checked,
    insert_all,
    insert_task,
    turn_records,
)
from agentrl.store.tables import ArtifactData, ArtifactFiles, EngineCalls, ToolCalls, Trajectories, Turns
from agentrl.store.values import Record
from agentrl.types import Sample, Trajectory


class Finished:
    """The records of finished trajectories, built where the caller is, so that `insert` has little to do."""

    def __init__(self, samples: Sequence[Sample], lease_generation: int) -> None:
        """Raises StoreError, naming trajectory and turn, for what isn't finished or doesn't fit together."""
        trajectories = [sample.trajectory for sample in samples]
        self._lease_generation = lease_generation
        self._trajectories = [_trajectory_record(one, lease_generation) for one in trajectories]
        self._tasks = {record["task"]: one.task for record, one in zip(self._trajectories, trajectories, strict=True)}
        self._turns = [record for one in trajectories for record in _turn_records(one)]
        self._artifacts = [_artifact_records(one) for one in trajectories]
        self._grades = [_grade_record(sample) for sample in samples]
        for record, grade in zip(self._trajectories, self._grades, strict=True):
            record["reward"] = grade and grade["reward"]

    def insert(self, connection: Connection) -> list[int | None]:
        """Insert them; the ids of their grades. Raises LeaseLost where a group isn't leased under the generation."""
        groups = {record["group_id"] for record in self._trajectories} - {None}
        held = {id: held_group(connection, id, self._lease_generation) for id in groups}
        for record in self._trajectories:
            if record["group_id"] is not None:
                check_place(record, held[record["group_id"]])
        for task in self._tasks.values():
            insert_task(connection, task)
        insert_blobs(connection, self._blobs().values())
        insert_all(connection, Trajectories, self._trajectories)
        insert_all(connection, Turns, [one.turn for one in self._turns])
        insert_all(connection, EngineCalls, [call for one in self._turns for call in one.engine_calls])
        insert_all(connection, ToolCalls, [call for one in self._turns for call in one.tool_calls])
        insert_all(connection, ArtifactData, [data for one in self._artifacts for data in one.data])
        insert_all(connection, ArtifactFiles, [file for one in self._artifacts for file in one.files])
        return [_insert_grade(connection, grade) for grade in self._grades]

    def _blobs(self) -> dict[bytes, Record]:
        of_turns = [blob for one in self._turns for blob in one.blobs]
        of_artifacts = [blob for one in self._artifacts for blob in one.blobs]
        return {blob["hash"]: blob for blob in of_turns + of_artifacts}


def _trajectory_record(trajectory: Trajectory, lease_generation: int) -> Record:
    if trajectory.stop_reason is None or trajectory.finished_at is None:
        raise StoreError(f"trajectory {trajectory.id} isn't finished: it has no stop reason or no time of its end")
    record = checked(trajectory.id, lambda: values.trajectory_record(trajectory))
    counts = {"num_turns": len(trajectory.turns), "num_sampled": trajectory.num_sampled}
    return record | counts | {"lease_generation": lease_generation}


def _turn_records(trajectory: Trajectory) -> list[TurnRecords]:
    for due, turn in enumerate(trajectory.turns):
        if turn.index != due:
            raise StoreError(f"trajectory {trajectory.id}: turn {turn.index} came where {due} was due")
    return [turn_records(trajectory, turn) for turn in trajectory.turns]


def _artifact_records(trajectory: Trajectory) -> ArtifactRecords:
    return checked(trajectory.id, lambda: artifact_records(trajectory.id, trajectory.artifacts))


def _grade_record(sample: Sample) -> Record | None:
    id, grade = sample.trajectory.id, sample.grade
    return None if grade is None else checked(id, lambda: values.grade_record(id, grade, time.time()))


def _insert_grade(connection: Connection, record: Record | None) -> int | None:
    added = None if record is None else find(connection, ADD_GRADE, record)
    return None if added is None else int(added["id"])
