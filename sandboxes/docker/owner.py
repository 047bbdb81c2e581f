"""Whose a container is, written on it as labels; and whether that process still lives."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

RUN, OWNER, EXPIRES = "agentrl.run", "agentrl.owner", "agentrl.expires"
GRACE_S = 60.0
"""A box ends by itself when it expires; one that didn't for so long is left over."""


def labels(run: str, lifetime_s: float) -> dict[str, str]:
    """For a new container of this process."""
    return {RUN: run, OWNER: _owner(os.getpid()), EXPIRES: str(int(time.time() + lifetime_s))}


def is_left_over(found: Mapping[str, str]) -> bool:
    """Did it expire, or did its process end? One of another machine, or of another container, can't be looked at."""
    try:
        if time.time() > float(found[EXPIRES]) + GRACE_S:
            return True
        boot, namespace, pid, _ = found[OWNER].split()
        return [boot, namespace] == _place() and _owner(int(pid)) != found[OWNER]
    except (KeyError, ValueError):
        return True  # no living run writes such labels


def _owner(pid: int) -> str:
    """Boot, namespace, process id, start time: a process id alone is used again."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        state, fields = "X", []
    started = fields[18] if state not in "XZ" else "ended"
    return " ".join([*_place(), str(pid), started])


def _place() -> list[str]:
    """Where process ids mean what they mean here."""
    return [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
