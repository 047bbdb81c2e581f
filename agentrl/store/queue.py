"""The queue between rollouts and training: groups from planned to archived, leases, and claims.

    planned → leased → complete → archived
       ↑________|          every state before archived → dropped(reason)

A lease that runs out by the database's clock can be taken over; its generation goes up, and whoever held it can
no longer write (LeaseLost). What the earlier holder finished stays; what it left unfinished ends as `lost`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, update

from agentrl.errors import StoreError
from agentrl.store.claims import change_claims, insert_claim, unclaimed
from agentrl.store.database import Database, database_now
from agentrl.store.direct import Values
from agentrl.store.leases import find_group, held_group
from agentrl.store.line import planned_groups
from agentrl.store.parts import insert_task
from agentrl.store.reading import final_attempts, latest_grades
from agentrl.store.records import ClaimState, Lease
from agentrl.store.sealing import seal
from agentrl.store.tables import Groups, Trajectories, table
from agentrl.store.writer import Writer
from agentrl.types import GroupState, Purpose, StopReason, Task

_IS_FREE: ColumnElement[bool] = or_(
    Groups.state == GroupState.PLANNED.value,
    and_(Groups.state == GroupState.LEASED.value, Groups.lease_until <= database_now()),
)


class Queue:
    """Writes are awaited and durable when they return; reads return at once. Group ids are never re-used."""

    def __init__(self, writer: Writer, database: Database) -> None:
        self._writer = writer
        self._database = database

    async def plan(
        self, run: str, task: Task, *, purpose: Purpose, ordinal: int, size: int, version: int | None = None
    ) -> str:
        """Add a planned group of `size` samples and return its id. `version` is the policy's at this time."""
        group_id = secrets.token_hex(8)
        record: dict[str, Any] = {"id": group_id, "run_id": run, "purpose": purpose.value, "size": size}
        record |= {"version": version, "state": GroupState.PLANNED.value, "planned_at": time.time()}
        record |= {"ordinal": ordinal, "lease_generation": 0, "reissue": 0}

        def work(connection: Connection) -> str:
            identity = insert_task(connection, task)
            connection.execute(insert(table(Groups)), record | {"task": identity})
            return group_id

        return await self._writer.write(work)

    def planned(self, run: str, ordinals: range) -> dict[int, str]:
        """The groups that stand in the run's plan at these ordinals: {ordinal: id}.

        After a crash or a stop they are gone on with. Archived groups are over, and so are those whose version
        was abandoned.
        """
        with self._database.reading() as connection:
            return planned_groups(connection, run, ordinals)

    async def lease(
        self,
        owner: str,
        ttl_s: float,
        *,
        run: str | None = None,
        purpose: Purpose | None = None,
        groups: Sequence[str] | None = None,
        limit: int = 1,
    ) -> list[Lease]:
        """Lease the groups named, or up to `limit` that are planned or whose lease ran out, lowest ordinal first.

        Named groups are leased all or not at all. An owner that names a group which it holds gets it as a
        re-issue: it must have restarted. Raises StoreError where a named group is held by another or is over.
        """

        def work(connection: Connection) -> list[Lease]:
            found = _next(connection, run, purpose, limit) if groups is None else _named(connection, groups, owner)
            return [_grant(connection, group, owner, ttl_s) for group in found]

        return await self._writer.write(work)

    async def heartbeat(self, lease: Lease, ttl_s: float) -> Lease:
        """The same lease, good for `ttl_s` seconds from now. Raises LeaseLost."""

        def work(connection: Connection) -> Lease:
            held_group(connection, lease.group, lease.generation)
            return _extend(connection, lease.group, ttl_s)

        return await self._writer.write(work)

    async def release(self, lease: Lease) -> None:
        """Give the group back as planned; its unfinished trajectories end as `lost`. Raises LeaseLost."""

        def work(connection: Connection) -> None:
            held_group(connection, lease.group, lease.generation)
            _end_unfinished(connection, lease.group)
            _set(connection, lease.group, state=GroupState.PLANNED.value, owner=None, lease_until=None)

        await self._writer.write(work)

    async def complete(self, lease: Lease) -> None:
        """Every sample's final attempt is finished, and graded where its ending allows. Raises LeaseLost.

        Raises StoreError naming the samples that are missing, unfinished or ungraded.
        """

        def work(connection: Connection) -> None:
            group = held_group(connection, lease.group, lease.generation)
            _check_complete(connection, group)
            _set(connection, lease.group, state=GroupState.COMPLETE.value, owner=None, lease_until=None)

        await self._writer.write(work)

    async def drop(self, group: str, reason: str, *, lease: Lease | None = None) -> None:
        """Take the whole group out, e.g. because fewer than two samples were measured.

        A leased group needs its lease. Raises LeaseLost; StoreError where the group is already over.
        """
        await self._end(group, lease, state=GroupState.DROPPED.value, dropped_reason=reason)

    async def archive(self, group: str, *, lease: Lease | None = None) -> None:
        """The run is done with the group; other runs may still claim it for a replay. Raises as `drop` does."""
        await self._end(group, lease, state=GroupState.ARCHIVED.value)

    async def claim(self, run: str, step: int, groups: Sequence[str]) -> None:
        """Take groups for a step of `run`: all or none.

        Raises StoreError where one isn't a complete train group (another run's may be archived), or where a step
        of this run that isn't abandoned has claimed it already (S1).
        """

        def work(connection: Connection) -> None:
            for group in groups:
                insert_claim(connection, run, step, group)

        await self._writer.write(work)

    async def consume(self, run: str, step: int) -> int:
        """The step's claims are used up; how many. `Store.record_step` does this by itself."""
        return await self._writer.write(lambda connection: change_claims(connection, run, step, ClaimState.CONSUMED))

    async def release_claims(self, run: str, step: int) -> int:
        """The step didn't use its claims: the groups can be claimed again; how many."""
        return await self._writer.write(lambda connection: change_claims(connection, run, step, ClaimState.RELEASED))

    def claimable(self, run: str, *, limit: int | None = None) -> list[str]:
        """Complete train groups of `run` that no surviving step of it has claimed, by ordinal."""
        query = unclaimed(run).limit(limit)
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def groups(self, run: str, *, states: Collection[GroupState] = tuple(GroupState)) -> list[str]:
        """Ids of the run's groups in one of `states`, by ordinal."""
        wanted = Groups.state.in_([state.value for state in states])
        query = select(Groups.id).where(Groups.run_id == run, wanted).order_by(Groups.ordinal, Groups.id)
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    async def _end(self, group: str, lease: Lease | None, **changes: Any) -> None:
        def work(connection: Connection) -> None:
            state = find_group(connection, group)["state"]
            if state in (GroupState.ARCHIVED, GroupState.DROPPED):
                raise StoreError(f"group {group} is already {state}")
            if state == GroupState.LEASED:
                held_group(connection, group, -1 if lease is None else lease.generation)
                _end_unfinished(connection, group)
            _set(connection, group, owner=None, lease_until=None, **seal(changes))

        await self._writer.write(work)


def _set(connection: Connection, group_id: str, **changes: Any) -> None:
    connection.execute(update(table(Groups)).where(Groups.id == group_id).values(changes))


def _next(connection: Connection, run: str | None, purpose: Purpose | None, limit: int) -> Sequence[Any]:
    query = select(table(Groups)).where(_IS_FREE).order_by(Groups.ordinal, Groups.planned_at, Groups.id)
    if run is not None:
        query = query.where(Groups.run_id == run)
    if purpose is not None:
        query = query.where(Groups.purpose == purpose.value)
    return connection.execute(query.limit(limit).with_for_update(skip_locked=True, key_share=True)).mappings().all()


def _named(connection: Connection, groups: Sequence[str], owner: str) -> list[Values]:
    found: list[Values] = []
    for group_id in groups:
        group = find_group(connection, group_id)
        free = connection.scalar(select(Groups.id).where(Groups.id == group_id, _IS_FREE)) is not None
        mine = group["state"] == GroupState.LEASED and group["owner"] == owner
        if not (free or mine):
            raise StoreError(f"group {group_id} can't be leased: it is {group['state']}, owner {group['owner']}")
        found.append(group)
    return found


def _grant(connection: Connection, group: Values, owner: str, ttl_s: float) -> Lease:
    again = group["lease_generation"] > 0
    if again:
        _end_unfinished(connection, group["id"])
    _set(
        connection,
        group["id"],
        state=GroupState.LEASED.value,
        owner=owner,
        lease_generation=group["lease_generation"] + 1,
        reissue=group["reissue"] + int(again),
    )
    return _extend(connection, group["id"], ttl_s)


def _extend(connection: Connection, group_id: str, ttl_s: float) -> Lease:
    _set(connection, group_id, lease_until=database_now() + ttl_s)
    group = find_group(connection, group_id)
    generation, until = group["lease_generation"], group["lease_until"]
    return Lease(group=group_id, generation=generation, reissue=group["reissue"], until=until)


def _end_unfinished(connection: Connection, group_id: str) -> None:
    """Each rollout that started has an ending (R1), also where its process is gone."""
    unfinished = update(table(Trajectories)).where(
        Trajectories.group_id == group_id, Trajectories.stop_reason.is_(None)
    )
    connection.execute(unfinished.values(stop_reason=StopReason.LOST.value, finished_at=time.time()))


def _check_complete(connection: Connection, group: Values) -> None:
    finals = final_attempts(connection, group["id"])
    graded = latest_grades(connection, [final["id"] for final in finals])
    missing = sorted(set(range(group["size"])) - {final["sample"] for final in finals})
    problems = [f"sample {sample} was never begun" for sample in missing]
    for final in finals:
        if final["stop_reason"] is None:
            problems.append(f"sample {final['sample']} is unfinished")
        elif StopReason(final["stop_reason"]).ending.graded and final["id"] not in graded:
            problems.append(f"sample {final['sample']} is ungraded")
    if problems:
        raise StoreError(f"group {group['id']} isn't complete: {', '.join(problems)}")
