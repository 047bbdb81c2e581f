"""Writes to a running trajectory, each guarded by its own WHERE: not finished, and the lease still held.

Check and write are one statement that changes or locks the trajectory's record, so nothing can come between them, on
any database: whoever ends the trajectory changes that record too. Where a statement changes no record, `explain` says
why.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, or_, select, update

from agentrl.errors import StoreError
from agentrl.store.direct import Values, find
from agentrl.store.leases import check_held, find_group, held_group
from agentrl.store.tables import Groups, ToolCalls, Trajectories, Turns, table
from agentrl.types import GroupState

_trajectories, _turns, _calls = table(Trajectories), table(Turns), table(ToolCalls)

CALL_CHANGES = ("status", "error", "result", "seconds", "raw")
"""What becomes of a tool call."""
TRAJECTORY_CHANGES = ("stop_reason", "error", "finished_at", "env_version", "renderer_mode", "template_hash", "raw")
"""What is set when a trajectory finishes."""


def _writable() -> ColumnElement[bool]:
    held = select(Groups.id).where(
        Groups.id == _trajectories.c.group_id,
        Groups.state == GroupState.LEASED.value,
        Groups.lease_generation == _trajectories.c.lease_generation,
    )
    return and_(
        _trajectories.c.id == bindparam("trajectory"),
        _trajectories.c.stop_reason.is_(None),
        or_(_trajectories.c.group_id.is_(None), held.correlate(_trajectories).exists()),
    )


COUNT_TURN = (
    update(_trajectories)
    .where(_writable(), _trajectories.c.num_turns == bindparam("index"))
    .values(num_turns=_trajectories.c.num_turns + 1, num_sampled=_trajectories.c.num_sampled + bindparam("sampled"))
)
FINISH = (
    update(_trajectories)
    .where(_writable(), _trajectories.c.num_turns == bindparam("num"))
    .values({name: bindparam("new_" + name) for name in TRAJECTORY_CHANGES})
)
UPDATE_TURN = (
    update(_turns)
    .where(_turns.c.trajectory_id == bindparam("trajectory"), _turns.c.turn == bindparam("index"))
    .where(select(_trajectories.c.id).where(_writable()).with_for_update(read=True).exists())
    .values(reward=bindparam("new_reward"), timings=bindparam("new_timings"))
    .values(raw=func.coalesce(bindparam("new_raw"), _turns.c.raw))
)
UPDATE_CALL = (
    update(_calls)
    .where(_calls.c.trajectory_id == bindparam("trajectory"), _calls.c.turn == bindparam("index"))
    .where(_calls.c.position == bindparam("place"))
    .values({name: bindparam("new_" + name) for name in CALL_CHANGES})
)

SET_REWARD = (
    update(_trajectories).where(_trajectories.c.id == bindparam("trajectory")).values(reward=bindparam("new_reward"))
)
"""Before the grade is inserted: the record's lock sees to it that the latest grade, by its id, sets it last."""


def explain(connection: Connection, trajectory_id: str) -> int:
    """Raise LeaseLost or StoreError if the trajectory can't be written; else how many turns it has."""
    state = _state(connection, trajectory_id)
    if state["group_id"] is not None:
        held_group(connection, state["group_id"], state["lease_generation"])
    if state["stop_reason"] is not None:
        raise StoreError(f"trajectory {trajectory_id} is finished ({state['stop_reason']}) and can't be changed")
    return int(state["num_turns"])


def check_gradable(connection: Connection, trajectory_id: str, lease_generation: int | None) -> None:
    """Raise StoreError unless the trajectory is finished, LeaseLost where another worker holds its group.

    `lease_generation`: the caller's; None: the one that the trajectory was played under.
    """
    state = _state(connection, trajectory_id)
    if state["stop_reason"] is None:
        raise StoreError(f"trajectory {trajectory_id} isn't finished, so it can't be graded")
    if state["group_id"] is None:
        return
    group = find_group(connection, state["group_id"])
    if group["state"] == GroupState.LEASED:
        check_held(group, state["lease_generation"] if lease_generation is None else lease_generation)


def _state(connection: Connection, trajectory_id: str) -> Values:
    state = find(connection, _STATE, {"trajectory": trajectory_id})
    if state is None:
        raise StoreError(f"trajectory {trajectory_id} was never begun")
    return state


_STATE = select(
    Trajectories.stop_reason, Trajectories.num_turns, Trajectories.group_id, Trajectories.lease_generation
).where(Trajectories.id == bindparam("trajectory"))
