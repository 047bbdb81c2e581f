"""The records of a trajectory's parts, checked before they are written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, bindparam, select

from agentrl.errors import StoreError
from agentrl.store import values
from agentrl.store.blobs import share
from agentrl.store.direct import Values, execute, find, insertion, insertion_unless_there
from agentrl.store.sealing import seal
from agentrl.store.tables import Base, Grades, Tasks
from agentrl.store.values import Record
from agentrl.types import Artifacts, ParsedCall, Sampler, Task, Trajectory, Turn

T = TypeVar("T")
_FIND_TASK = (
    select(Tasks.identity)
    .where(Tasks.identity == bindparam("identity"))
    .with_for_update(read=True, key_share=True)  # nobody may delete it before it is referred to
)
ADD_GRADE = insertion(Grades).returning(Grades.id)


def insert_task(connection: Connection, task: Task) -> str:
    """Insert the task unless it is there; its identity."""
    identity = values.task_identity(task)
    if find(connection, _FIND_TASK, {"identity": identity}) is None:
        execute(connection, insertion_unless_there(Tasks, connection.dialect.name), values.task_record(task))
    return identity


def checked(trajectory_id: str, build: Callable[[], T]) -> T:
    """The built record; it is built where the caller is, so that later changes to the noun don't get in."""
    try:
        return build()
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise StoreError(f"trajectory {trajectory_id} holds a value that can't be stored: {error}") from error


def check_place(record: Record, group: Values) -> None:
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


def check_parent(trajectory: Trajectory, place: int) -> None:
    """Raise StoreError unless the turn in this place goes on from an earlier one, and keeps what that has (T5)."""
    turn = trajectory.turns[place]
    if turn.index != place or (turn.parent is not None and not 0 <= turn.parent < place):
        raise StoreError(f"turn {turn.index} with parent {turn.parent} in place {place}")
    if not 0 <= turn.keep <= (0 if turn.parent is None else trajectory.turns[turn.parent].num_ids):
        raise StoreError(f"turn {turn.index} keeps {turn.keep} ids, more than its parent has, or fewer than none")


class TurnRecords(NamedTuple):
    """A turn with what it holds, by table."""

    turn: Record
    blobs: list[Record]
    engine_calls: list[Record]
    tool_calls: list[Record]


def turn_records(trajectory: Trajectory, turn: Turn) -> TurnRecords:
    """The records of a turn. Raises StoreError, naming trajectory and turn, where it doesn't fit together (T5)."""
    check_lengths(trajectory.id, turn)
    return checked(trajectory.id, lambda: _turn_records(trajectory, turn))


def _turn_records(trajectory: Trajectory, turn: Turn) -> TurnRecords:
    is_first = turn.parent is None
    record = values.turn_record(trajectory.id, turn, values.answers_of(_calls_before(trajectory, turn)))
    return TurnRecords(
        record,
        _shared(record, "prompt_ids", "prompt_messages") if is_first else [],
        [values.engine_call_record(trajectory.id, turn.index, i, call) for i, call in enumerate(turn.calls)],
        tool_call_records(trajectory.id, turn),
    )


def _calls_before(trajectory: Trajectory, turn: Turn) -> list[ParsedCall]:
    """The tool calls whose results the turn's prompt may hold; those were written by `update_turn` before."""
    has_parent = turn.parent is not None and turn.parent < len(trajectory.turns)
    return trajectory.turns[turn.parent or 0].tool_calls if has_parent else []


def tool_call_records(trajectory_id: str, turn: Turn) -> list[Record]:
    """The records of a turn's tool calls."""
    return [values.tool_call_record(trajectory_id, turn.index, i, call) for i, call in enumerate(turn.tool_calls)]


class ArtifactRecords(NamedTuple):
    """A trajectory's artifacts, by table."""

    data: list[Record]
    files: list[Record]
    blobs: list[Record]


def artifact_records(trajectory_id: str, artifacts: Artifacts) -> ArtifactRecords:
    """The records of a trajectory's artifacts."""
    data = [seal({"trajectory_id": trajectory_id, "data": artifacts.data})] if artifacts.data else []
    files = [
        seal({"trajectory_id": trajectory_id, "position": i, "name": name, "content": content, "content_hash": None})
        for i, (name, content) in enumerate(artifacts.files.items())
    ]
    return ArtifactRecords(data, files, [blob for file in files for blob in _shared(file, "content")])


def _shared(record: Record, *columns: str) -> list[Record]:
    return [blob for column in columns if (blob := share(record, column)) is not None]


def insert_all(connection: Connection, model: type[Base], records: Sequence[Record]) -> None:
    """Insert what there is."""
    if records:
        execute(connection, insertion(model), *records)
