"""How many boxes there may be, how much memory they may be promised, and how fast they may be started (G08)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.errors import SandboxError, SandboxFault

GIB = 1024**3
SHARE_OF_MEMORY = 0.8
"""Of the machine, where the config names no sum: the trainer and the engine need some too."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Room:
    """What all boxes together may take. Who comes first is served first, so that a large box isn't passed for ever."""

    def __init__(self, max_boxes: int, max_memory_bytes: int) -> None:
        self.max_boxes = max_boxes
        self.max_memory_bytes = max_memory_bytes
        self.num_boxes = 0
        self.memory_bytes = 0
        """The sum of the limits of those that are in."""
        self.num_waiting = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def enter(self, memory_bytes: int, make_room: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a box with this limit fits. `make_room` ends one that nobody uses; False: there is none.

        Raises SandboxError for a box that never fits.
        """
        self._check(memory_bytes)
        self.num_waiting += 1
        try:
            async with self._turn:
                while not self._fits(memory_bytes):
                    self._changed.clear()
                    if not await make_room():
                        await self._changed.wait()
                self._add(memory_bytes)
        finally:
            self.num_waiting -= 1

    def try_enter(self, memory_bytes: int) -> bool:
        """Enter if there is room that nobody waits for."""
        is_free = self.num_waiting == 0 and self._fits(memory_bytes)
        if is_free:
            self._add(memory_bytes)
        return is_free

    def leave(self, memory_bytes: int) -> None:
        """A box of this limit is gone."""
        self.num_boxes -= 1
        self.memory_bytes -= memory_bytes
        self._changed.set()

    def _add(self, memory_bytes: int) -> None:
        self.num_boxes += 1
        self.memory_bytes += memory_bytes

    def _fits(self, memory_bytes: int) -> bool:
        return self.num_boxes < self.max_boxes and self.memory_bytes + memory_bytes <= self.max_memory_bytes

    def _check(self, memory_bytes: int) -> None:
        if memory_bytes > self.max_memory_bytes:
            raise SandboxError(
                f"a box with a limit of {memory_bytes / GIB:.3g} GiB doesn't fit the {self.max_memory_bytes / GIB:.3g} "
                f"GiB that all boxes may have together: lower the environment's memory_bytes, or raise "
                f"sandbox.max_memory_gib if this machine has more to give",
                SandboxFault.HOST_FULL,
            )


class Pace:
    """Lets so many through per second, evenly."""

    def __init__(self, per_second: float) -> None:
        self._gap_s = 1 / per_second
        self._next = 0.0

    async def wait(self) -> None:
        """Until it is the caller's turn."""
        now = time.monotonic()
        turn = max(now, self._next)
        self._next = turn + self._gap_s
        await asyncio.sleep(turn - now)


def memory_for_boxes(max_memory_gib: float | None) -> int:
    """Bytes that all boxes may be promised together."""
    return int(SHARE_OF_MEMORY * machine_memory_bytes() if max_memory_gib is None else max_memory_gib * GIB)


def machine_memory_bytes() -> int:
    """Of the machine, or of the container that this process runs in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, _CGROUP_LIMITS):
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    return min(limits)
