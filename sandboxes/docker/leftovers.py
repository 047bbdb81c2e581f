"""Whose a container is, written on it as labels; and the removal of those that nobody will."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentrl.errors import SandboxError
from agentrl.sandboxes.docker.engine import Engine
from agentrl.sandboxes.owners import is_of_this_boot, is_orphan, name_of_ours

if TYPE_CHECKING:
    from docker import APIClient

LOGGER = logging.getLogger(__name__)
RUN, OWNER, EXPIRES = "agentrl.run", "agentrl.owner", "agentrl.expires"
GRACE_S = 60.0
"""A box ends by itself when it expires; one that didn't for so long is left over."""
NUM_TRIES = 3
"""Of one removal: the engine may be busy with the container."""


def labels(run: str, lifetime_s: float) -> dict[str, str]:
    """For a new container of this process."""
    return {RUN: run, OWNER: name_of_ours(""), EXPIRES: str(int(time.time() + lifetime_s))}


def is_left_over(container: Mapping[str, Any]) -> bool:
    """Did it expire, or did its process end? `container`: as the engine lists it.

    One that runs since another boot is another machine's that shares the engine: its process can't be seen from here.
    """
    found = container["Labels"]
    owner, expires = found.get(OWNER, ""), found.get(EXPIRES, "")
    if expires.isdigit() and time.time() > int(expires) + GRACE_S:
        return True
    may_be_seen = is_of_this_boot(owner) or container["State"] != "running"
    return may_be_seen and is_orphan(owner)


async def sweep(engine: Engine) -> int:
    """Remove what dead runs left; how many that were. What can't be removed is logged, and left for the next sweep."""
    found = await engine.call(lambda client: client.containers(all=True, filters={"label": [OWNER]}))
    removed = [await _remove(engine, one["Id"], one["Labels"].get(RUN, "?")) for one in found if is_left_over(one)]
    return sum(removed)


async def remove_own(engine: Engine, run: str) -> None:
    """Whatever this process still has of a run, also what the engine made after nobody waited for it any more."""
    labels_of_ours = [f"{RUN}={run}", f"{OWNER}={name_of_ours('')}"]
    found = await engine.call(lambda client: client.containers(all=True, filters={"label": labels_of_ours}))
    for one in found:
        await _remove(engine, one["Id"], run)


async def _remove(engine: Engine, container: str, run: str) -> bool:
    for number in range(1, NUM_TRIES + 1):
        try:
            was_there = await engine.call(lambda client: remove(client, container))
            if was_there:
                LOGGER.info("removed container %.12s, which run %s left", container, run)
            return was_there
        except SandboxError as error:
            LOGGER.warning(
                "container %.12s of run %s can't be removed, try %d of %d: %s", container, run, number, NUM_TRIES, error
            )
    return False


def remove(client: APIClient, container: str) -> bool:
    """Kill it and take it away; back when it is gone, whoever does it. Was it there?

    An engine may list for ever what isn't there any more.
    """
    from docker.errors import APIError

    try:
        client.remove_container(container, force=True, v=True)
    except APIError as error:
        if error.status_code == 409:  # the engine is at it
            _wait_until_gone(client, container)
        elif error.status_code == 404:
            return False
        else:
            raise
    return True


def _wait_until_gone(client: APIClient, container: str) -> None:
    from docker.errors import NotFound

    with suppress(NotFound):
        client.wait(container, condition="removed")
