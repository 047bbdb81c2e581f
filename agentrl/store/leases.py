"""The one check that keeps a worker whose lease is gone from writing."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from agentrl.errors import LeaseLost, StoreError
from agentrl.store.direct import Values, find
from agentrl.store.tables import Groups, table
from agentrl.types import GroupState

_FIND = select(table(Groups)).where(Groups.id == bindparam("group")).with_for_update(key_share=True)


def find_group(connection: Connection, group_id: str) -> Values:
    """The group's record, locked until the transaction ends, though not against new records that refer to it.

    Raises StoreError where there is none.
    """
    group = find(connection, _FIND, {"group": group_id})
    if group is None:
        raise StoreError(f"no group {group_id!r} in the store")
    return group


def held_group(connection: Connection, group_id: str, generation: int) -> Values:
    """The group's record; raises LeaseLost unless it is leased under `generation`.

    A lease that ran out but that nobody took is still held: what its owner wrote is good.
    """
    return check_held(find_group(connection, group_id), generation)


def check_held(group: Values, generation: int) -> Values:
    """As `held_group`, for a group that was found already."""
    if group["state"] != GroupState.LEASED or group["lease_generation"] != generation:
        raise LeaseLost(
            f"group {group['id']}: lease {generation} is over; the group is {group['state']}, "
            f"lease {group['lease_generation']}, owner {group['owner']}"
        )
    return group
