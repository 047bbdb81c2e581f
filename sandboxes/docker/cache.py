"""What our pulls brought, bounded in bytes: the images that were used least recently go first.

The list is kept by the engine itself, as a second name of each image, so that it holds for all runs, and nobody else's
images are on it. The engine tells when a name was given last; it is given again when the image is used.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import APIClient

LOGGER = logging.getLogger(__name__)
MARK = "agentrl-pulled"
"""The repository of the second names."""
KEEP_S = 600.0
"""Used so recently, by whatever run: not removed."""
TOUCH_S = 60.0
"""A use is told to the engine so often at most."""


def mark(client: APIClient, image: str) -> None:
    """It came by our pull."""
    client.tag(image, MARK, _digest(image))


def touch(client: APIClient, image: str) -> None:
    """It is used now. Nothing is done where it didn't come by our pull."""
    from docker.errors import ImageNotFound

    with suppress(ImageNotFound):
        client.tag(f"{MARK}:{_digest(image)}", MARK, _digest(image))


def trim(client: APIClient, max_bytes: int) -> list[str]:
    """Remove images until their sum is within the bound; the names that are gone.

    One that has another's name too, that a container uses or that was used lately stays. Layers that images share are
    counted in each.
    """
    ours = [one for one in client.images() if _marks(one) and _names(one) is not None]  # asked by name, it hides others
    used = {one["Id"]: _last_use(client, one["Id"]) for one in ours}
    num_bytes, gone = sum(one["Size"] for one in ours), []
    for one in sorted(ours, key=lambda one: used[one["Id"]]):
        if num_bytes > max_bytes and time.time() - used[one["Id"]] > KEEP_S and _remove(client, one):
            num_bytes -= one["Size"]
            gone += _names(one) or []
    return gone


def _marks(image: Mapping[str, Any]) -> set[str]:
    return {name for name in image["RepoTags"] or [] if name.startswith(f"{MARK}:")}


def _names(image: Mapping[str, Any]) -> list[str] | None:
    """Those by which it was pulled; None: it has others besides."""
    marks = _marks(image)
    others = [name for name in image["RepoTags"] or [] if name not in marks]
    digests = [name for name in image["RepoDigests"] or [] if f"{MARK}:{_digest(name)}" in marks]
    if any(f"{MARK}:{_digest(name)}" not in marks for name in others):
        return None
    return others + digests


def _last_use(client: APIClient, image: str) -> float:
    """In seconds since 1970."""
    told = client.inspect_image(image)["Metadata"]["LastTagTime"]
    return datetime.fromisoformat(told).timestamp()


def _remove(client: APIClient, image: Mapping[str, Any]) -> bool:
    from docker.errors import APIError

    if client.containers(all=True, filters={"ancestor": image["Id"]}):
        return False
    try:
        for name in [*(_names(image) or []), *_marks(image)]:
            client.remove_image(name)
    except APIError as error:  # somebody began to use it, or removed it
        LOGGER.warning("image %s can't be removed: %s", image["Id"], error.explanation)
        return False
    LOGGER.info("removed image %s: more than sandbox.options.max_image_bytes", ", ".join(_names(image) or []))
    return True


def _digest(image: str) -> str:
    return hashlib.sha256(image.encode()).hexdigest()[:32]
