"""The line of versions and steps of a run. Ids count up and are never re-used; ordinals follow the surviving line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from agentrl.errors import StoreError
from agentrl.store.claims import change_claims
from agentrl.store.records import ClaimState, StepRecord, StepRow, StepState, VersionRecord
from agentrl.store.sealing import seal, unseal
from agentrl.store.tables import Claims, EngineCalls, Groups, Runs, StepRows, Steps, Trajectories, Versions, table
from agentrl.store.values import step_row_record
from agentrl.types import GroupState, StopReason


def add_version(
    connection: Connection,
    run: str,
    *,
    parent: tuple[str, int] | None,
    step: int | None,
    weights_hash: str,
    ordinal: int,
) -> int:
    """Insert a version and return its id: 0 for the run's first, then one more than the largest."""
    version = _next_id(connection, run, Versions)
    parent_run, parent_version = parent or (None, None)
    record = {"run_id": run, "id": version, "ordinal": ordinal, "step_id": step, "weights_hash": weights_hash}
    record |= {"parent_run_id": parent_run, "parent_version": parent_version, "abandoned": False}
    connection.execute(insert(table(Versions)), record | {"created_at": time.time()})
    return version


def begin_step(connection: Connection, run: str, *, ordinal: int, version: int) -> int:
    """Insert a step that starts from `version` and return its id; a run's first step is 0."""
    step = _next_id(connection, run, Steps)
    record: dict[str, Any] = {"run_id": run, "id": step, "ordinal": ordinal, "version_before": version}
    record |= {"state": StepState.BEGUN.value, "abandoned": False, "started_at": time.time()}
    connection.execute(insert(table(Steps)), record)
    return step


def record_step(
    connection: Connection,
    run: str,
    step: int,
    *,
    rows: Sequence[StepRow],
    metrics: dict[str, Any],
    version_after: int | None,
) -> None:
    """Write what a step did and consume its claims. Raises StoreError unless the step is begun and not abandoned."""
    changes = seal({"metrics": metrics})
    changes |= {"state": StepState.RECORDED.value, "version_after": version_after, "finished_at": time.time()}
    open_step = (Steps.run_id == run, Steps.id == step, Steps.state == StepState.BEGUN.value, ~Steps.abandoned)
    if connection.execute(update(table(Steps)).where(*open_step).values(changes)).rowcount == 0:
        raise StoreError(f"step {step} of run {run} isn't open: it was never begun, is recorded or was abandoned")
    if rows:
        connection.execute(insert(table(StepRows)), [step_row_record(run, step, row) for row in rows])
    change_claims(connection, run, step, ClaimState.CONSUMED)


def abandon(connection: Connection, run: str, *, version: int, step: int | None) -> None:
    """Cut the line back to a checkpoint that holds `version` and was taken after `step` (None: before any).

    Later versions and steps are abandoned; groups sampled or planned with those versions are archived, and what
    was still running in them ends as interrupted; the claims of the abandoned steps are released, and what they
    had claimed of surviving versions is complete again, to be trained on by the steps that take their place.
    """
    known = select(Versions.id).where(Versions.run_id == run, Versions.id == version, ~Versions.abandoned)
    if connection.scalar(known) is None:
        raise StoreError(f"run {run} has no surviving version {version} to go back to")
    later_steps = (Steps.run_id == run, Steps.id > (-1 if step is None else step))
    connection.execute(update(table(Versions)).where(Versions.run_id == run, Versions.id > version).values(_ABANDONED))
    connection.execute(update(table(Steps)).where(*later_steps).values(_ABANDONED))
    abandoned_steps = select(Steps.id).where(Steps.run_id == run, Steps.abandoned)
    claims = update(table(Claims)).where(Claims.run_id == run, Claims.step_id.in_(abandoned_steps))
    connection.execute(claims.values(state=ClaimState.RELEASED.value))
    _reopen_groups(connection, run, version)
    _archive_groups_past(connection, run, version)


def planned_groups(connection: Connection, run: str, ordinals: range) -> dict[int, str]:
    """{ordinal: id} of the run's groups in a stretch of its plan, without what is archived or was abandoned."""
    gone = select(Versions.id).where(Versions.run_id == run, Versions.abandoned)
    query = (
        select(Groups.ordinal, Groups.id)
        .where(Groups.run_id == run, Groups.ordinal >= ordinals.start, Groups.ordinal < ordinals.stop)
        .where(Groups.state != GroupState.ARCHIVED.value, Groups.version.not_in(gone))
    )
    return {record["ordinal"]: record["id"] for record in connection.execute(query).mappings()}


_ABANDONED = {"abandoned": True}


def versions(connection: Connection, run: str) -> list[VersionRecord]:
    """All versions of a run by id, abandoned ones too."""
    query = select(table(Versions)).where(Versions.run_id == run).order_by(Versions.id)
    return [_read_version(record) for record in connection.execute(query).mappings()]


def steps(connection: Connection, run: str) -> list[StepRecord]:
    """All steps of a run by id, abandoned ones too."""
    query = select(table(Steps)).where(Steps.run_id == run).order_by(Steps.id)
    return [_read_step(record) for record in connection.execute(query).mappings()]


def _next_id(connection: Connection, run: str, model: type[Versions] | type[Steps]) -> int:
    """Versions and steps are never deleted, so one more than the largest id was never used.

    Two writers can't get the same: the run's record is locked.
    """
    connection.execute(select(Runs.id).where(Runs.id == run).with_for_update(key_share=True))
    largest = connection.scalar(select(func.max(model.id)).where(model.run_id == run))
    return 0 if largest is None else largest + 1


def _reopen_groups(connection: Connection, run: str, version: int) -> None:
    """Archived groups that only abandoned steps had trained on become complete."""
    released = select(Claims.group_id).where(Claims.run_id == run, Claims.state == ClaimState.RELEASED.value)
    live = select(Claims.group_id).where(Claims.run_id == run, Claims.state != ClaimState.RELEASED.value)
    mine = (Groups.run_id == run, Groups.state == GroupState.ARCHIVED.value, Groups.version <= version)
    freed = update(table(Groups)).where(*mine, Groups.id.in_(released), Groups.id.not_in(live))
    connection.execute(freed.values(state=GroupState.COMPLETE.value))


def _archive_groups_past(connection: Connection, run: str, version: int) -> None:
    sampled = (
        select(Trajectories.group_id)
        .join(EngineCalls, EngineCalls.trajectory_id == Trajectories.id)
        .where(Trajectories.run_id == run, EngineCalls.version > version, Trajectories.group_id.is_not(None))
    )
    over = (GroupState.ARCHIVED.value, GroupState.DROPPED.value)
    past = (
        Groups.run_id == run,
        Groups.state.not_in(over),
        or_(Groups.version > version, Groups.id.in_(sampled)),
    )
    # Locked, so that no worker begins another rollout in them meanwhile.
    connection.execute(select(Groups.id).where(*past).with_for_update(key_share=True))
    running = (Trajectories.stop_reason.is_(None), Trajectories.group_id.in_(select(Groups.id).where(*past)))
    ending = {"stop_reason": StopReason.INTERRUPTED.value, "finished_at": time.time()}
    connection.execute(update(table(Trajectories)).where(*running).values(ending))
    retired = {"state": GroupState.ARCHIVED.value, "owner": None, "lease_until": None}
    connection.execute(update(table(Groups)).where(*past).values(retired))


def _read_version(record: Any) -> VersionRecord:
    names = ("id", "ordinal", "weights_hash", "abandoned", "created_at")
    parent = record["parent_run_id"]
    return VersionRecord(
        run=record["run_id"],
        parent=None if parent is None else (parent, record["parent_version"]),
        step=record["step_id"],
        **{name: record[name] for name in names},
    )


def _read_step(record: Any) -> StepRecord:
    values = unseal(record)
    names = ("id", "ordinal", "version_before", "version_after", "abandoned", "metrics", "started_at", "finished_at")
    own = {name: values[name] for name in names}
    return StepRecord(run=values["run_id"], state=StepState(values["state"]), **own)
