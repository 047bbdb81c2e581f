"""Writes trajectories while they happen: what a Recorder of `agentrl.rollout.recorder` promises."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection

from agentrl.errors import StoreError
from agentrl.store import guarded, values
from agentrl.store.blobs import insert_blobs
from agentrl.store.direct import execute, find, insertion
from agentrl.store.finished import Finished
from agentrl.store.leases import held_group
from agentrl.store.parts import (
    ADD_GRADE,
    artifact_records,
    check_place,
    checked,
    insert_all,
    insert_task,
    tool_call_records,
    turn_records,
)
from agentrl.store.tables import ArtifactData, ArtifactFiles, EngineCalls, ToolCalls, Trajectories, Turns
from agentrl.store.writer import Writer
from agentrl.types import Grade, Sample, Trajectory, Turn


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
        record = checked(trajectory.id, lambda: values.trajectory_record(trajectory))
        record |= {"lease_generation": lease_generation, "num_turns": 0, "num_sampled": 0}
        if record["stop_reason"] is not None:
            raise StoreError(f"trajectory {trajectory.id} has a stop reason before it begins")

        def work(connection: Connection) -> None:
            if trajectory.group is not None:
                check_place(record, held_group(connection, trajectory.group, lease_generation))
            insert_task(connection, trajectory.task)
            execute(connection, insertion(Trajectories), record)

        await self._writer.write(work)

    async def add_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """Insert a turn and what it holds by now. Turns come in order, without gaps.

        Raises StoreError, naming trajectory and turn, where lengths don't agree (T5).
        """
        records = turn_records(trajectory, turn)
        turn_index, num_sampled = turn.index, len(turn.sampled_ids) if turn.trained else 0
        count = {"trajectory": trajectory.id, "index": turn_index, "sampled": num_sampled}

        def work(connection: Connection) -> None:
            if execute(connection, guarded.COUNT_TURN, count) == 0:
                due = guarded.explain(connection, trajectory.id)
                raise StoreError(f"trajectory {trajectory.id}: turn {turn_index} came where {due} was due")
            insert_blobs(connection, records.blobs)
            execute(connection, insertion(Turns), records.turn)
            insert_all(connection, EngineCalls, records.engine_calls)
            insert_all(connection, ToolCalls, records.tool_calls)

        await self._writer.write(work)

    async def update_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """Write what came after sampling: reward, timings, and what became of the tool calls. Nothing else changes."""
        changes = checked(trajectory.id, lambda: values.turn_changes(turn))
        calls = checked(trajectory.id, lambda: tool_call_records(trajectory.id, turn))
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
        record = checked(trajectory.id, lambda: values.trajectory_record(trajectory))
        if record["stop_reason"] is None:
            raise StoreError(f"trajectory {trajectory.id} can't finish without a stop reason")
        num_turns = len(trajectory.turns)
        ending = {"new_" + name: record[name] for name in guarded.TRAJECTORY_CHANGES}
        ending |= {"trajectory": trajectory.id, "num": num_turns}
        artifacts = checked(trajectory.id, lambda: artifact_records(trajectory.id, trajectory.artifacts))

        def work(connection: Connection) -> None:
            if execute(connection, guarded.FINISH, ending) == 0:
                recorded = guarded.explain(connection, trajectory.id)
                raise StoreError(f"trajectory {trajectory.id} has {num_turns} turns, of which {recorded} were recorded")
            insert_blobs(connection, artifacts.blobs)
            insert_all(connection, ArtifactData, artifacts.data)
            insert_all(connection, ArtifactFiles, artifacts.files)

        await self._writer.write(work)

    async def add_grade(self, trajectory: Trajectory, grade: Grade, lease_generation: int | None = None) -> int:
        """Append a grade to a finished trajectory and return its id; grades can be appended at any later time.

        While its group is leased, only the holder of the lease may grade: `lease_generation` where it is not the one
        that the trajectory was played under.
        """
        record = checked(trajectory.id, lambda: values.grade_record(trajectory.id, grade, time.time()))

        def work(connection: Connection) -> int:
            guarded.check_gradable(connection, trajectory.id, lease_generation)
            execute(connection, guarded.SET_REWARD, {"trajectory": trajectory.id, "new_reward": record["reward"]})
            added = find(connection, ADD_GRADE, record)
            assert added is not None, "an insert of one record returns its key"
            return int(added["id"])

        return await self._writer.write(work)

    async def add_finished(self, samples: Sequence[Sample], lease_generation: int = 0) -> list[int | None]:
        """Insert whole trajectories that are finished, all or none; the ids of their grades, None where there is none.

        For what was made elsewhere: some hundred at a time are fast and hold the write lock for a tenth of a second.
        Those that belong to groups need their leases, as `begin` does. A fork comes after what it was forked from.
        """
        finished = Finished(samples, lease_generation)
        return await self._writer.write(finished.insert)
