"""Writes trajectories while they happen: what a Recorder of `agentrl.rollout.recorder` promises."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection, bindparam, select

from agentrl.errors import StoreError
from agentrl.store import guarded, values
from agentrl.store.direct import Values, execute, find
from agentrl.store.leases import held_group
from agentrl.store.sealing import seal
from agentrl.store.tables import (
    ArtifactData,
    ArtifactFiles,
    Base,
    EngineCalls,
    Grades,
    Tasks,
    ToolCalls,
    Trajectories,
    Turns,
    insertion,
    insertion_unless_there,
)
from agentrl.store.values import Record
from agentrl.store.writer import Writer
from agentrl.types import Artifacts, Grade, Sampler, Task, Trajectory, Turn

T = TypeVar("T")
_FIND_TASK = (
    select(Tasks.identity)
    .where(Tasks.identity == bindparam("identity"))
    .with_for_update(read=True, key_share=True)  # nobody may delete it before it is referred to
)
_ADD_GRADE = insertion(Grades).returning(Grades.id)


class SqlRecorder:
    """Each call returns once the write is durable; a trajectory that is finished can't be changed.

    All calls raise StoreError for values that don't fit, and LeaseLost where the trajectory's group is no longer
    leased under the generation that `begin` was given. A write that fails leaves no trace.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def begin(self, trajectory: Trajectory, lease_generation: int) -> None:
        """Insert the trajectory without turns. `lease_generation` is ignored where it belongs to no group.

        Raises StoreError where run, task or sample don't fit the group.
        """
        record = _checked(trajectory.id, lambda: values.trajectory_record(trajectory))
        record |= {"lease_generation": lease_generation, "num_turns": 0, "num_sampled": 0}
        if record["stop_reason"] is not None:
            raise StoreError(f"trajectory {trajectory.id} has a stop reason before it begins")

        def work(connection: Connection) -> None:
            if trajectory.group is not None:
                _check_place(record, held_group(connection, trajectory.group, lease_generation))
            insert_task(connection, trajectory.task)
            execute(connection, insertion(Trajectories), record)

        await self._writer.write(work)

    async def add_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """Insert a turn and what it holds by now. Turns come in order, without gaps.

        Raises StoreError, naming trajectory and turn, where lengths don't agree (T5).
        """
        check_lengths(trajectory.id, turn)
        record = _checked(trajectory.id, lambda: values.turn_record(trajectory.id, turn))
        calls = _checked(trajectory.id, lambda: _engine_calls(trajectory.id, turn))
        tool_calls = _checked(trajectory.id, lambda: _tool_calls(trajectory.id, turn))
        num_sampled = len(turn.sampled_ids) if turn.trained else 0
        count = {"trajectory": trajectory.id, "index": turn.index, "sampled": num_sampled}

        def work(connection: Connection) -> None:
            if execute(connection, guarded.COUNT_TURN, count) == 0:
                due = guarded.explain(connection, trajectory.id)
                raise StoreError(f"trajectory {trajectory.id}: turn {record['turn']} came where {due} was due")
            execute(connection, insertion(Turns), record)
            _insert_all(connection, EngineCalls, calls)
            _insert_all(connection, ToolCalls, tool_calls)

        await self._writer.write(work)

    async def update_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """Write what came after sampling: reward, timings, and what became of the tool calls. Nothing else changes."""
        changes = _checked(trajectory.id, lambda: values.turn_changes(turn))
        calls = _checked(trajectory.id, lambda: _tool_calls(trajectory.id, turn))
        ends = [{"new_" + name: call[name] for name in guarded.CALL_CHANGES} for call in calls]
        key = {"trajectory": trajectory.id, "index": turn.index}

        def work(connection: Connection) -> None:
            if execute(connection, guarded.UPDATE_TURN, key | changes) == 0:
                guarded.explain(connection, trajectory.id)
                raise StoreError(f"trajectory {trajectory.id}: turn {turn.index} was never added")
            records = [key | {"place": place} | end for place, end in enumerate(ends)]
            if records and execute(connection, guarded.UPDATE_CALL, *records) != len(records):
                raise StoreError(f"trajectory {trajectory.id}, turn {turn.index}: a tool call came that it didn't have")

        await self._writer.write(work)

    async def finish(self, trajectory: Trajectory) -> None:
        """Write the ending and the artifacts. The trajectory is immutable from here on."""
        record = _checked(trajectory.id, lambda: values.trajectory_record(trajectory))
        if record["stop_reason"] is None:
            raise StoreError(f"trajectory {trajectory.id} can't finish without a stop reason")
        num_turns = len(trajectory.turns)
        ending = {"new_" + name: record[name] for name in guarded.TRAJECTORY_CHANGES}
        ending |= {"trajectory": trajectory.id, "num": num_turns}
        data, files = _checked(trajectory.id, lambda: _artifacts(trajectory.id, trajectory.artifacts))

        def work(connection: Connection) -> None:
            if execute(connection, guarded.FINISH, ending) == 0:
                recorded = guarded.explain(connection, trajectory.id)
                raise StoreError(f"trajectory {trajectory.id} has {num_turns} turns, of which {recorded} were recorded")
            _insert_all(connection, ArtifactData, data)
            _insert_all(connection, ArtifactFiles, files)

        await self._writer.write(work)

    async def add_grade(self, trajectory: Trajectory, grade: Grade, lease_generation: int | None = None) -> int:
        """Append a grade to a finished trajectory and return its id; grades can be appended at any later time.

        While its group is leased, only the holder of the lease may grade: `lease_generation` where it is not the one
        that the trajectory was played under.
        """
        record = _checked(trajectory.id, lambda: values.grade_record(trajectory.id, grade, time.time()))

        def work(connection: Connection) -> int:
            guarded.check_gradable(connection, trajectory.id, lease_generation)
            added = find(connection, _ADD_GRADE, record)
            assert added is not None, "an insert of one record returns its key"
            return int(added["id"])

        return await self._writer.write(work)


def insert_task(connection: Connection, task: Task) -> str:
    """Insert the task unless it is there; its identity."""
    identity = values.task_identity(task)
    if find(connection, _FIND_TASK, {"identity": identity}) is None:
        execute(connection, insertion_unless_there(Tasks, connection.dialect.name), values.task_record(task))
    return identity


def _checked(trajectory_id: str, build: Callable[[], T]) -> T:
    """The built record; it is built where the caller is, so that later changes to the noun don't get in."""
    try:
        return build()
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise StoreError(f"trajectory {trajectory_id} holds a value that can't be stored: {error}") from error


def _check_place(record: Record, group: Values) -> None:
    """A group's samples are of its run and task: an advantage compares them with one another."""
    for name in ("run_id", "task"):
        if record[name] != group[name]:
            raise StoreError(f"trajectory {record['id']}: {name} is {record[name]}, but {group[name]} in its group")
    if not 0 <= record["sample"] < group["size"]:
        raise StoreError(f"trajectory {record['id']}: sample {record['sample']} in a group of {group['size']}")


def check_lengths(trajectory_id: str, turn: Turn) -> None:
    """Raise StoreError, naming trajectory and turn, unless ids, logprobs and engine calls fit together (T5)."""
    where = f"trajectory {trajectory_id}, turn {turn.index}"
    num_sampled = len(turn.sampled_ids)
    if len(turn.logprobs) != num_sampled:
        raise StoreError(f"{where}: {num_sampled} sampled ids, but {len(turn.logprobs)} logprobs")
    if turn.sampler not in (Sampler.ENGINE, Sampler.TEXT):
        if turn.calls:
            raise StoreError(f"{where}: its sampler is {turn.sampler}, but it has engine calls")
        return
    end = 0
    for call in turn.calls:
        if call.start != end or call.end < call.start:
            raise StoreError(f"{where}: engine calls leave a gap or overlap at sampled id {end}")
        end = call.end
    if end != num_sampled:
        raise StoreError(f"{where}: {num_sampled} sampled ids, but engine calls cover {end}")


def _insert_all(connection: Connection, model: type[Base], records: Sequence[Record]) -> None:
    if records:
        execute(connection, insertion(model), *records)


def _engine_calls(trajectory_id: str, turn: Turn) -> list[Record]:
    return [values.engine_call_record(trajectory_id, turn.index, i, call) for i, call in enumerate(turn.calls)]


def _tool_calls(trajectory_id: str, turn: Turn) -> list[Record]:
    return [values.tool_call_record(trajectory_id, turn.index, i, call) for i, call in enumerate(turn.tool_calls)]


def _artifacts(trajectory_id: str, artifacts: Artifacts) -> tuple[list[Record], list[Record]]:
    data = [seal({"trajectory_id": trajectory_id, "data": artifacts.data})] if artifacts.data else []
    files = [
        seal({"trajectory_id": trajectory_id, "position": i, "name": name, "content": content})
        for i, (name, content) in enumerate(artifacts.files.items())
    ]
    return data, files
