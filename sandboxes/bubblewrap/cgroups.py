"""A cgroup per box for memory, processes and CPU, version 1 or 2, wherever this process may make one.

Only commands are in it, not the server that starts them: they join by a file that we opened. So whatever fills the
memory, the kernel picks its victim among the commands, and the box goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.owners import is_orphan

CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
"""In which a box may use its share of the CPUs."""
REMOVE_S = 2.0
"""For the last processes to be gone."""


class Mount(NamedTuple):
    """One line of mountinfo: where a hierarchy is mounted, and which part of it."""

    root: str
    folder: Path
    kind: str
    options: frozenset[str]


@dataclass(kw_only=True, slots=True)
class Cgroup:
    """The folders of one box, by controller; with version 2 they are the same."""

    folders: dict[str, Path]
    is_v2: bool
    joins: list[int] = field(default_factory=list)
    """Open files: a process that writes 0 joins, whoever it is."""

    @classmethod
    def create(cls, name: str, spec: SandboxSpec, parents: Parents) -> Cgroup:
        """Raises OSError, and leaves nothing then."""
        group = cls(folders={c: parent / name for c, parent in parents.folders.items()}, is_v2=parents.is_v2)
        try:
            for folder in group._distinct():
                folder.mkdir()
            for path, value in group._limits(spec):
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap has no file for it
                    path.write_text(value)
            group.joins = [os.open(folder / "cgroup.procs", os.O_WRONLY) for folder in group._distinct()]
        except OSError:
            group.remove()
            raise
        return group

    def num_out_of_memory(self) -> int:
        """How many of its processes the memory limit has killed."""
        if "memory" not in self.folders:
            return 0
        path = self.folders["memory"] / ("memory.events" if self.is_v2 else "memory.oom_control")
        try:
            words = path.read_text().split()
        except OSError:  # removed
            return 0
        return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0

    def remove(self) -> None:
        """Safe to call twice. Processes that are still in it are killed."""
        for file in self.joins:
            os.close(file)
        self.joins = []
        for folder in self._distinct():
            remove(folder)

    def _distinct(self) -> list[Path]:
        return list(dict.fromkeys(self.folders.values()))

    def _limits(self, spec: SandboxSpec) -> Iterator[tuple[Path, str]]:
        # The box's disk lies in memory, too. Without room of its own, a full disk would leave no memory for processes.
        memory, quota = str(spec.memory_bytes + spec.disk_bytes), str(int(spec.cpus * PERIOD_US))
        values = {
            "memory": {"memory.max": memory, "memory.swap.max": "0"}
            if self.is_v2
            else {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
            "pids": {"pids.max": str(spec.max_processes)},
            "cpu": {"cpu.max": f"{quota} {PERIOD_US}"}
            if self.is_v2
            else {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota},
        }
        for controller, folder in self.folders.items():
            for name, value in values[controller].items():
                yield folder / name, value


@dataclass(frozen=True, kw_only=True, slots=True)
class Parents:
    """Where this process may make cgroups, by controller; a controller that isn't there can't be had."""

    folders: dict[str, Path]
    is_v2: bool

    @classmethod
    def find(cls, proc: Path = Path("/proc/self")) -> Parents:
        """Version 1 where its controllers are mounted, else version 2."""
        try:
            mounts = list(_mounts((proc / "mountinfo").read_text()))
            own = _own_groups((proc / "cgroup").read_text())
        except OSError:
            return cls(folders={}, is_v2=True)
        first = {c: folder for c in CONTROLLERS if (folder := _v1_parent(c, mounts, own)) is not None}
        if first:
            return cls(folders=first, is_v2=False)
        return cls(folders=_v2_parents(mounts, own), is_v2=True)

    def sweep(self) -> int:
        """Remove the cgroups of processes that are gone; how many boxes had them. Another user's stay."""
        dead = {path for folder in self.folders.values() for path in folder.glob("agentrl-box-*")}
        dead = {path for path in dead if is_orphan(path.name)}
        for path in dead:
            remove(path)
        return len({path.name for path in dead} - {path.name for path in dead if path.exists()})


def remove(folder: Path) -> None:
    """A cgroup, once nothing runs in it; what does is killed."""
    until = time.monotonic() + REMOVE_S
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            _kill(folder)
            if time.monotonic() > until:
                return
            time.sleep(0.005)


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)


def _mounts(mountinfo: str) -> Iterator[Mount]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            words = before.split()
            yield Mount(words[3], Path(words[4]), kind, frozenset(options.split(",")))


def _own_groups(text: str) -> dict[str, str]:
    """{controller: path}; version 2 has the controller ""."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def _v1_parent(controller: str, mounts: list[Mount], own: dict[str, str]) -> Path | None:
    for mount in mounts:
        if mount.kind == "cgroup" and controller in mount.options and controller in own:
            folder = _in_mount(mount, own[controller])
            return folder if os.access(folder, os.W_OK) else None
    return None


def _v2_parents(mounts: list[Mount], own: dict[str, str]) -> dict[str, Path]:
    """The nearest group above ours that hands controllers down and may be written to."""
    for mount in mounts:
        if mount.kind == "cgroup2" and "" in own:
            start = _in_mount(mount, own[""])
            for folder in (start, *start.parents):
                if not folder.is_relative_to(mount.folder):
                    break
                handed_down = _words(folder / "cgroup.subtree_control")
                if "memory" in handed_down and os.access(folder / "cgroup.procs", os.W_OK):
                    return {c: folder for c in CONTROLLERS if c in handed_down}
    return {}


def _in_mount(mount: Mount, path: str) -> Path:
    """A container sees only a part of the hierarchy, and may be told paths of the whole."""
    inside = PurePosixPath(path)
    if inside.is_relative_to(mount.root):
        return mount.folder / inside.relative_to(mount.root)
    return mount.folder


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
