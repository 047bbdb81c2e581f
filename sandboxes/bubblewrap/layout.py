"""What a box sees, as command lines: the script that makes its folders, and bwrap's arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentrl.sandbox import SandboxSpec

TOP = "/sys"
"""The box's tmpfs is mounted here in a mount namespace of its own: a folder that every Linux has and no box needs, so
none has to be made, and none is left."""
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = ("alternatives", "ca-certificates", "ld.so.cache", "localtime", "mime.types", "ssl/certs", "ssl/openssl.cnf")
"""What programs want of the machine's own /etc, and no secret is in."""
BLOCK_BYTES = 4096
PREPARE = f"""
set -e
top={TOP} size=$1 inodes=$2 base=$3 owner=$4 inside=$5
shift 5
[ -z "$base" ] || exec 3<"$base"
mount -t tmpfs -o "size=$size,nr_inodes=$inodes,mode=0755" agentrl $top
mkdir -m 0755 $top/workdir $top/etc
mkdir -m 1777 $top/tmp $top/shm
echo "root:x:0:0:root:/:/bin/false
agent:x:$inside:$inside:agent:/tmp:/bin/sh" > $top/etc/passwd
echo "root:x:0:
agent:x:$inside:" > $top/etc/group
echo "127.0.0.1 localhost box" > $top/etc/hosts
echo "hosts: files" > $top/etc/nsswitch.conf
if [ -n "$base" ]; then
    mkdir $top/lower $top/upper $top/scratch
    mount --bind /proc/self/fd/3 $top/lower
    exec 3<&-
    mount -t overlay -o "lowerdir=$top/lower,upperdir=$top/upper,workdir=$top/scratch,$OVERLAY" agentrl $top/workdir
fi
[ -z "$owner" ] || chown -hR "$owner:$owner" $top/workdir
exec "$@"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One box's."""

    spec: SandboxSpec
    bwrap: str
    owner: int | None
    """User id of this box alone; None: we aren't root, and the box's user is us, by another number."""

    @property
    def user(self) -> int:
        """The id inside."""
        return self.owner or self.spec.user

    def argv(self, server: list[str], *, seccomp: int | None, lifeline: int) -> list[str]:
        """The whole command. `seccomp`: an open file with the filter; `lifeline`: one that bwrap holds to its end."""
        filtered = [] if seccomp is None else ["--seccomp", str(seccomp)]
        bwrap = [self.bwrap, *self._closed(), *self._seen(), *filtered, "--json-status-fd", str(lifeline), "--"]
        return [*self._prepare(), *bwrap, *self._user(), *server]

    def _prepare(self) -> list[str]:
        spec = self.spec
        as_root = [] if self.owner is not None else ["--user", "--map-root-user"]
        # A layer that only holds what changed: whose a file is changes without its content.
        options = "metacopy=on,redirect_dir=on" if self.owner is not None else "userxattr"
        script = PREPARE.replace("$OVERLAY", options)
        inodes = max(1024, spec.disk_bytes // BLOCK_BYTES)
        words = [spec.disk_bytes, inodes, spec.base or "", "" if self.owner is None else self.owner, self.user]
        unshare = ["unshare", *as_root, "--mount", "--propagation", "private"]
        return [*unshare, "sh", "-c", script, "agentrl", *map(str, words)]

    def _closed(self) -> list[str]:
        words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        words += ["--hostname", "box", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
        words += ["--cap-drop", "ALL"]
        if self.owner is not None:
            for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # for setpriv, which drops them
                words += ["--cap-add", name]
            return words
        return [*words, *f"--unshare-user --uid {self.user} --gid {self.user} --disable-userns".split()]

    def _user(self) -> list[str]:
        if self.owner is None:
            return []
        words = f"--reuid={self.owner} --regid={self.owner} --clear-groups --bounding-set=-all --inh-caps=-all"
        return ["setpriv", *words.split(), "--no-new-privs", "--"]

    def _seen(self) -> list[str]:
        words = ["--perms", "0755", "--dir", "/etc", "--ro-bind", "/usr", "/usr", *_system(), *_etc(), *_python()]
        for name in ("passwd", "group", "hosts", "nsswitch.conf"):
            words += ["--ro-bind", f"{TOP}/etc/{name}", f"/etc/{name}"]
        words += ["--proc", "/proc", "--dev", "/dev"]
        words += [*_parents(PurePosixPath(self.spec.workdir)), "--bind", f"{TOP}/workdir", self.spec.workdir]
        words += ["--bind", f"{TOP}/tmp", "/tmp", "--bind", f"{TOP}/shm", "/dev/shm"]
        return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def python() -> Path:
    """The interpreter without its virtual environment: the server runs by it, and it is the box's `python3`."""
    return Path(sys.executable).resolve()


def python_path() -> str:
    """Folders that a command's PATH starts with; empty where the system's Python is ours."""
    return "" if python().is_relative_to("/usr") else f"{python().parent}:"


def _system() -> Iterator[str]:
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def _etc() -> Iterator[str]:
    for name in ETC:
        path = Path("/etc", name)
        if path.exists():
            yield from (*_parents(PurePosixPath(path)), "--ro-bind", str(path), str(path))


def _python() -> Iterator[str]:
    """At its own path, or it would load another's libraries."""
    home = Path(sys.base_prefix).resolve()
    if not home.is_relative_to("/usr"):
        yield from (*_parents(PurePosixPath(home)), "--ro-bind", str(home), str(home))


def _parents(path: PurePosixPath) -> Iterator[str]:
    """Folders that bwrap would make unreadable."""
    for parent in reversed(path.parents[:-1]):
        yield from ("--perms", "0755", "--dir", str(parent))
