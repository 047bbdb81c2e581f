"""`docker`: a container for each box, closed but for what the spec asks for.

The server of the channel is the container's first process: nobody inside can kill it, and it takes all others along
when it ends. Its stdin is ours. When this process ends, in whatever way, the engine closes it; then the server ends,
and the engine removes the container.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import platform
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import Preflight, SandboxOptions, SandboxSpec
from agentrl.sandboxes.channel.backend import ChannelBackend
from agentrl.sandboxes.channel.client import Client
from agentrl.sandboxes.channel.program import program
from agentrl.sandboxes.docker import leftovers
from agentrl.sandboxes.docker.box import DockerSandbox
from agentrl.sandboxes.docker.engine import Engine
from agentrl.sandboxes.docker.images import Image, Images
from agentrl.sandboxes.docker.limits import host_config
from agentrl.sandboxes.docker.options import DockerOptions
from agentrl.sandboxes.system_calls import filter_program

if TYPE_CHECKING:
    from docker import APIClient

SERVER = 'exec "$(command -v python3 || command -v python)" -IS -c "$@"'
"""What the image's shell runs, with the program and its settings."""
OWNED = 'chown -hR "$1" "$2" && shift 2 && ' + SERVER
"""The same, in an image whose workdir shall be the user's."""
NEEDS = "an image needs /bin/sh, and Python 3.7 or later in its PATH"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What Docker calls the machines for which there is a filter of system calls."""
COUNTERS = ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events")
"""Of cgroup v1 and v2: where a box sees what its memory limit killed. The engine itself tells of the first process
only."""
ARCHIVE_BYTES = 16 * 1024**2
LIMITS = {
    "MemoryLimit": "memory_bytes",
    "SwapLimit": "memory_bytes: swap isn't counted",
    "CpuCfsQuota": "cpus",
    "PidsLimit": "max_processes",
}
"""What the engine says it can hold → what of the spec it can't where it says no."""


class DockerBackend(ChannelBackend[DockerSandbox]):
    """Boxes of one engine."""

    Options = DockerOptions
    options: DockerOptions

    def __init__(self, options: SandboxOptions, *, run: str) -> None:
        super().__init__(options, run=run)
        self._engine = Engine(self.options.socket, timeout_s=self.options.ready_timeout_s)
        self._images = Images(self._engine, self.options)
        self._discarded: set[asyncio.Task[None]] = set()

    async def preflight(self) -> Preflight:
        try:
            found = await self._engine.call(lambda client: client.info())
        except SandboxError as error:
            return Preflight(missing=(str(error),))
        if self.options.runtime and self.options.runtime not in found.get("Runtimes", {}):
            known = ", ".join(sorted(found.get("Runtimes", {})))
            return Preflight(
                missing=(f"the engine has no runtime {self.options.runtime!r}; it has: {known}; install it there",)
            )
        return Preflight(not_enforced=tuple(_not_enforced(found)))

    async def pull(self, image: str, tell: Callable[[str], None]) -> None:
        await self._images.pull(image, tell)

    async def prepare(self, spec: SandboxSpec) -> None:
        await self._images.ensure(self._image_of(spec))

    async def open(self, spec: SandboxSpec) -> DockerSandbox:
        """Who stops waiting leaves no container: one that was being made is removed when it is there."""
        opening = asyncio.create_task(self._open(spec))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            discarding = asyncio.create_task(_discard(opening))
            self._discarded.add(discarding)
            discarding.add_done_callback(self._discarded.discard)
            raise

    async def _open(self, spec: SandboxSpec) -> DockerSandbox:
        image = await self._images.ensure(self._image_of(spec))
        base = await asyncio.to_thread(archives, spec.base) if spec.base else []
        name = f"agentrl-{secrets.token_hex(6)}"
        try:
            client = await self._connect(name, image, spec, sum(map(len, base)))
            box = DockerSandbox(client, spec, environment=image.environment, engine=self._engine, container=name)
            for archive in base:
                await box.write_tree(spec.workdir, archive)
        except BaseException as error:
            with suppress(SandboxError):
                await self._engine.call(lambda api: leftovers.remove(api, name))
            if isinstance(error, SandboxError) and error.kind is SandboxFault.IMAGE:
                self._images.forget(image.name)
            raise
        return box

    async def _connect(self, name: str, image: Image, spec: SandboxSpec, base_bytes: int) -> Client:
        """A container whose server answers. Raises SandboxError with what it said."""
        await self._engine.call(lambda api: self._create(api, name, image, spec, base_bytes))
        stream = await self._engine.attach(name)
        client = Client(stream, stream.writer, name=name)
        try:
            await self._engine.call(lambda api: api.start(name))
            await client.ready(self.options.ready_timeout_s)
        except BaseException as error:
            await client.close()
            raise self._not_ready(name, image, error, stream.words) from error
        return client

    def _not_ready(self, name: str, image: Image, error: BaseException, words: str) -> BaseException:
        """What to raise in its place."""
        kind = error.kind if isinstance(error, SandboxError) else None
        if isinstance(error, TimeoutError):
            what = f"wasn't ready within {self.options.ready_timeout_s:g} s (sandbox.options.ready_timeout_s)"
        elif kind is SandboxFault.START:
            what = f"can't start: {error}"
        elif kind in (SandboxFault.DIED, SandboxFault.CHANNEL):
            what = "ended at once" if kind is SandboxFault.DIED else "says what no box says"
        else:
            return error
        return SandboxError(f"box {name} of image {image.name} {what}{words}; {NEEDS}", SandboxFault.START)

    def _create(self, api: APIClient, name: str, image: Image, spec: SandboxSpec, base_bytes: int) -> None:
        settings: dict[str, Any] = {"workdir": spec.workdir, "lifetime_s": spec.lifetime_s, "user": spec.user}
        settings |= {"rlimits": {}, "cgroups": [], "counters": COUNTERS, "filter": _filter(image.architecture)}
        first = [OWNED, "sh", str(spec.user), spec.workdir] if spec.writable_root else [SERVER, "sh"]
        api.create_container(
            image.name,
            entrypoint=["/bin/sh", "-c", *first, program(), json.dumps(settings)],
            command=[],
            name=name,
            hostname="box",
            user="0:0",
            stdin_open=True,
            working_dir="/",
            healthcheck={"test": ["NONE"]},
            labels=leftovers.labels(self.run, spec.lifetime_s),
            host_config=host_config(api, spec, self.options, base_bytes, image.volumes),
            use_config_proxy=False,  # it may hold a password
        )

    def _image_of(self, spec: SandboxSpec) -> str:
        image = spec.image or self.options.image
        if image is None:
            raise SandboxError(
                "docker needs an image, and the task names none: set sandbox.options.image=…, or use bubblewrap",
                SandboxFault.IMAGE,
            )
        return image

    async def sweep(self) -> int:
        return await leftovers.sweep(self._engine)

    async def close(self) -> None:
        await self._images.close()
        await asyncio.gather(*self._discarded, return_exceptions=True)
        await super().close()
        with suppress(SandboxError):
            await leftovers.remove_own(self._engine, self.run)
        self._engine.close()


def archives(folder: str) -> list[bytes]:
    """A folder's files, folders and links as tar archives of about ARCHIVE_BYTES: the box holds one at a time."""
    top, done, batch, size = Path(folder), [], [], 0
    for path in sorted(top.rglob("*")):
        batch.append(path)
        size += path.lstat().st_size
        if size > ARCHIVE_BYTES:
            done.append(_archive(top, batch))
            batch, size = [], 0
    return [*done, _archive(top, batch)]


def _archive(top: Path, paths: list[Path]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in paths:
            if path.is_symlink() or path.is_file() or path.is_dir():
                archive.add(path, str(path.relative_to(top)), recursive=False)
    return out.getvalue()


def _not_enforced(found: Mapping[str, Any]) -> Iterator[str]:
    """From what the engine says of itself."""
    for flag, limit in LIMITS.items():
        if found.get(flag) is False:
            yield f"{limit}: the kernel's cgroups under the engine don't count it"
    if not any("seccomp" in option for option in found.get("SecurityOptions") or []):
        yield "system calls: the engine was built or started without seccomp"
    why = filter_program()
    if found.get("Architecture") != platform.machine():
        why = f"the engine's machine is a {found.get('Architecture')}, this one a {platform.machine()}"
    if isinstance(why, str):
        yield f"system calls beyond the engine's own filter: {why}"
    yield "writable_root: disk_bytes doesn't bound what is written into an image's own folders"


def _filter(architecture: str) -> str:
    """The engine's own filter lets commands open sockets to a virtual machine's host, past their missing network.

    Ours is compiled for this machine; an image of another kind goes without, for it would refuse all.
    """
    program = filter_program()
    is_same = ARCHITECTURES.get(platform.machine()) == architecture
    return base64.b64encode(program).decode() if isinstance(program, bytes) and is_same else ""


async def _discard(opening: asyncio.Task[DockerSandbox]) -> None:
    with suppress(SandboxError):
        await (await opening).stop()
