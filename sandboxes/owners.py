"""Whose a leftover is: names that tell the process they belong to, also after it is gone and its id is another's."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"agentrl-box-(?P<boot>[0-9a-f]{8})-(?P<space>\d+)-(?P<pid>\d+)-(?P<start>\d+)-")


def name_of_ours(rest: str) -> str:
    """A name for something that must go when this process is gone."""
    return f"agentrl-box-{_boot()}-{_space()}-{os.getpid()}-{_start(os.getpid())}-{rest}"


def is_orphan(name: str) -> bool:
    """Was it named by a process that has ended, or before the last boot? False for any other name.

    False too for one of another container on this machine: its process can't be seen from here.
    """
    found = _NAME.match(name)
    if found is None:
        return False
    if found["boot"] != _boot():
        return True
    return found["space"] == _space() and _start(int(found["pid"])) != found["start"]


def is_of_this_boot(name: str) -> bool:
    """Was it named on this machine, since it started? False for any other name."""
    found = _NAME.match(name)
    return found is not None and found["boot"] == _boot()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]


def _space() -> str:
    """Where process ids mean what they mean here."""
    return str(os.stat("/proc/self/ns/pid").st_ino)


def _start(pid: int) -> str | None:
    """When a process started, in ticks since the boot; None: there is none, or it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else after_name[19]
