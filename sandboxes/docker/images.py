"""Images: looked for here, else pulled. Logins are the SDK's: it reads what `docker login` wrote, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandboxes.docker import cache
from agentrl.sandboxes.docker.engine import Engine, refused
from agentrl.sandboxes.docker.options import DockerOptions
from agentrl.visible import one_line

if TYPE_CHECKING:
    from docker import APIClient

LOGGER = logging.getLogger(__name__)
STALL_S = 300.0
"""A pull that brings nothing for so long has failed."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
REPORT_S = 5.0
Tell = Callable[[str], None]
"""Takes one line about how far a pull is; may be called in another thread."""
_TOO_OFTEN = ("toomanyrequests", "too many requests", "rate limit", "429")
_PASSING = (
    "timeout", "timed out", "connection refused", "connection reset", "eof", "temporary failure", "502", "503", "504",
    "internal server error",
)  # fmt: skip


@dataclass(kw_only=True, frozen=True, slots=True)
class Image:
    """One that the engine has."""

    name: str
    environment: Mapping[str, str]
    """Its own variables, PATH among them."""
    architecture: str
    """As Docker calls it, such as amd64."""
    volumes: tuple[str, ...] = ()
    """Folders for which it asks for volumes."""


class Images:
    """Of one engine. An image is pulled once, however many boxes wait for it."""

    def __init__(self, engine: Engine, options: DockerOptions) -> None:
        self._engine, self._options = engine, options
        self._here: dict[str, Image] = {}
        self._pulls: dict[str, asyncio.Task[str]] = {}
        self._touched: dict[str, float] = {}

    async def ensure(self, image: str) -> Image:
        """Here it is. Raises SandboxError of kind IMAGE, or HOST_FULL.

        Who stops waiting doesn't stop the pull: it is there for the next.
        """
        if image not in self._here:
            found = await self._engine.call(lambda client: _look_up(client, image))
            if found is None:
                name = await self._wait_for_pull(image)
                found = await self._engine.call(lambda client: _look_up(client, name))
            if found is None:
                raise _no_image(image, "it was pulled, and is gone")
            self._here[image] = found
        await self._touch(self._here[image].name)
        return self._here[image]

    def forget(self, image: str) -> None:
        """The engine says that it is gone."""
        self._here.pop(image, None)

    async def pull(self, image: str, tell: Tell) -> str:
        """Get it, or a newer one of that name; returns what the engine calls it. Raises as `ensure`."""
        source = mirrored(image, self._options.mirror)
        for number in range(1, self._options.max_pull_tries + 1):
            try:
                await self._engine.call_long(lambda client: _pull(client, image, source, tell), timeout_s=STALL_S)
                name = image if "@" not in image else source
                await self._bound(name)
                return name
            except SandboxError as error:
                text = str(error).lower()
                passes = any(sign in text for sign in (*_TOO_OFTEN, *_PASSING))
                if error.kind is not SandboxFault.IMAGE or not passes or number == self._options.max_pull_tries:
                    raise SandboxError(f"{error}; {_advice(text, image)}", error.kind) from error
                pause_s = _pause_s(number)
                tell(f"pulling {image}: {error}; try {number + 1} in {pause_s:.0f} s")
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _touch(self, name: str) -> None:
        """Before its use, so that no run removes it meanwhile."""
        now = time.monotonic()
        if self._options.max_image_bytes and now - self._touched.get(name, -cache.TOUCH_S) >= cache.TOUCH_S:
            self._touched[name] = now
            await self._engine.call(lambda client: cache.touch(client, name))

    async def _bound(self, name: str) -> None:
        """After the pull of one."""
        max_bytes = self._options.max_image_bytes
        if max_bytes is None:
            return
        await self._engine.call(lambda client: cache.mark(client, name))
        gone = await self._engine.call(lambda client: cache.trim(client, max_bytes))
        self._here = {image: found for image, found in self._here.items() if found.name not in gone}

    async def close(self) -> None:
        """Wait for no pull."""
        for task in self._pulls.values():
            task.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)

    async def _wait_for_pull(self, image: str) -> str:
        if not self._options.pull:
            raise SandboxError(
                f"the image {image} isn't here, and sandbox.options.pull=false: `docker pull` or `docker load` it",
                SandboxFault.IMAGE,
            )
        if image not in self._pulls or self._pulls[image].done():
            self._pulls[image] = asyncio.create_task(self.pull(image, LOGGER.info))
        return await asyncio.shield(self._pulls[image])


def mirrored(image: str, mirror: str | None) -> str:
    """Where to get it: Docker Hub's images, which name no registry, from the mirror."""
    first, _, rest = image.partition("/")
    names_registry = bool(rest) and ("." in first or ":" in first or first == "localhost")
    if mirror is None or names_registry:
        return image
    return f"{mirror}/{image if rest else f'library/{image}'}"


def _pause_s(number: int) -> float:
    """After a failed try: grows, and differs, so that many machines don't come back at once."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (number - 1)) * random.uniform(0.5, 1.5)


def _look_up(client: APIClient, name: str) -> Image | None:
    from docker.errors import ImageNotFound

    try:
        found = client.inspect_image(name)
    except ImageNotFound:
        return None
    variables = found["Config"].get("Env") or []
    environment = dict(variable.split("=", 1) for variable in variables)
    volumes = tuple(found["Config"].get("Volumes") or ())
    return Image(name=name, environment=environment, architecture=found.get("Architecture", ""), volumes=volumes)


def _pull(client: APIClient, image: str, source: str, tell: Tell) -> None:
    from docker.errors import APIError
    from requests.exceptions import RequestException

    repository, tag = _split(source)
    progress = _Progress(image, tell)
    try:
        for message in client.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in message:
                raise _no_image(image, str(message["error"]))
            progress.add(message)
    except APIError as error:
        raise _no_image(image, error.explanation or str(error)) from error
    except RequestException as error:
        raise _no_image(image, f"timed out: nothing came for {STALL_S:.0f} s, or the engine ended") from error
    if source != image and "@" not in image:
        client.tag(source, *_split(image))
        client.remove_image(source)  # this name of it only


def _split(image: str) -> tuple[str, str]:
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(image)
    return repository, tag or "latest"


def _no_image(image: str, reason: str) -> SandboxError:
    kind = SandboxFault.HOST_FULL if refused(reason).kind is SandboxFault.HOST_FULL else SandboxFault.IMAGE
    return SandboxError(f"the image {image} can't be pulled: {one_line(reason)}", kind)


def _advice(text: str, image: str) -> str:
    if any(sign in text for sign in _TOO_OFTEN):
        return (
            f"`docker login` raises the limit, sandbox.options.mirror=… asks another registry, "
            f"`agentrl sandbox pull docker {image}` gets it before a run"
        )
    if "no space left" in text:
        return "`docker image prune` makes room"
    return "check its name, `docker login` where it is private, or `docker load` it"


class _Progress:
    """The engine's many messages about layers as a line now and then."""

    def __init__(self, image: str, tell: Tell) -> None:
        self._image, self._tell = image, tell
        self._layers: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()
        self._last = time.monotonic()

    def add(self, message: Mapping[str, Any]) -> None:
        layer, status = message.get("id", ""), message.get("status", "")
        if status in ("Pull complete", "Already exists"):
            self._done.add(layer)
        detail = message.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._layers[layer] = (detail["current"], detail["total"])
        if time.monotonic() - self._last >= REPORT_S:
            self._last = time.monotonic()
            self._tell(self._line())

    def _line(self) -> str:
        current, total = (
            (_megabytes(part) for part in zip(*self._layers.values(), strict=True)) if self._layers else (0, 0)
        )
        num_layers = len(self._done | self._layers.keys())
        return f"pulling {self._image}: {len(self._done)} of {num_layers} layers, {current} of {total} MB"


def _megabytes(sizes: Iterable[int]) -> int:
    return sum(sizes) // 1_000_000
