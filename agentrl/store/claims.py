"""Which step trained on which group, so that nothing is trained twice on a run's surviving line (S1)."""

from __future__ import annotations

import time

from sqlalchemy import Connection, Select, insert, select, update

from agentrl.errors import StoreError
from agentrl.store.records import ClaimState, StepState
from agentrl.store.tables import Claims, Groups, Steps, table
from agentrl.types import GroupState, Purpose


def insert_claim(connection: Connection, run: str, step: int, group_id: str) -> None:
    """Claim one group for a step. Raises StoreError where it can't be trained on, or is claimed by the run."""
    open_step = Steps.run_id == run, Steps.id == step, Steps.state == StepState.BEGUN.value, ~Steps.abandoned
    if connection.scalar(select(Steps.id).where(*open_step).with_for_update(read=True)) is None:
        raise StoreError(f"step {step} of run {run} isn't open: it was never begun, is recorded or was abandoned")
    query = (
        select(Groups.run_id, Groups.purpose, Groups.state).where(Groups.id == group_id).with_for_update(key_share=True)
    )
    group = connection.execute(query).mappings().one_or_none()
    if group is None:
        raise StoreError(f"no group {group_id!r} in the store")
    if group["purpose"] != Purpose.TRAIN:
        raise StoreError(f"group {group_id} has purpose {group['purpose']}; only train groups can be claimed")
    is_replay = group["run_id"] != run and group["state"] == GroupState.ARCHIVED
    if group["state"] != GroupState.COMPLETE and not is_replay:
        raise StoreError(f"group {group_id} is {group['state']}; only complete groups can be claimed")
    live = Claims.group_id == group_id, Claims.run_id == run, Claims.state != ClaimState.RELEASED.value
    claimed_by = connection.scalar(select(Claims.step_id).where(*live))
    if claimed_by is not None:
        raise StoreError(f"group {group_id} is claimed by step {claimed_by} of run {run} already")
    record = {"run_id": run, "group_id": group_id, "step_id": step, "claimed_at": time.time()}
    connection.execute(insert(table(Claims)), record | {"state": ClaimState.CLAIMED.value})


def change_claims(connection: Connection, run: str, step: int, state: ClaimState) -> int:
    """Move the step's open claims to `state`; how many there were."""
    mine = Claims.run_id == run, Claims.step_id == step, Claims.state == ClaimState.CLAIMED.value
    return connection.execute(update(table(Claims)).where(*mine).values(state=state.value)).rowcount


def unclaimed(run: str) -> Select[str]:
    """Ids of the run's complete train groups without a live claim of the run, by ordinal."""
    live = select(Claims.id).where(
        Claims.group_id == Groups.id, Claims.run_id == run, Claims.state != ClaimState.RELEASED.value
    )
    return (
        select(Groups.id)
        .where(Groups.run_id == run, Groups.purpose == Purpose.TRAIN.value)
        .where(Groups.state == GroupState.COMPLETE.value, ~live.exists())
        .order_by(Groups.ordinal, Groups.id)
    )
