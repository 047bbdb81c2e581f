"""Weights by broadcasts over loopback, without a disk: for engines on a CPU.

The trainer is rank 0 of a group, the workers of all engines follow. Whoever fails leaves the group, at which everybody
else's broadcast fails; the next try begins with a new group.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import EngineError
from agentrl.sync.base import RemoteReceiver
from agentrl.sync.remote import Sent, Transport, all_of
from agentrl.transfer import GlooGroup

TIMEOUT_S = 60.0
"""For all to meet, and for one tensor to arrive at a worker that is alive but doesn't take it."""


class GlooTransport(Transport):
    """A group that lasts from one publish to the next, until something fails."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._engines: list[RemoteReceiver] = []
        self._group: GlooGroup | None = None

    def connect(self, engines: Sequence[RemoteReceiver]) -> None:
        """See Transport."""
        self.close()
        self._engines = list(engines)

    async def prepare(self, sent: Sent) -> None:
        """Meet, where there is no group."""
        if self._group is None:
            self._group = await self._meet()

    async def deliver(self, sent: Sent) -> list[dict[str, str]]:
        """See Transport."""
        receiving = [asyncio.ensure_future(engine.receive(sent.manifest, {})) for engine in self._engines]
        try:
            return (await all_of([*receiving, asyncio.to_thread(self._send, sent)]))[:-1]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See Transport."""
        if self._group is not None:
            self._group.close()
        self._group = None

    def _send(self, sent: Sent) -> dict[str, str]:
        """Blocks. Nothing arrives here; an engine that failed says why itself, so that its error comes first."""
        assert self._group is not None
        try:
            self._group.send(sent.tensors.values())
        except RuntimeError as error:
            self._group.close()  # or those that wait for more would wait on
            raise EngineError(f"the weights could not be sent by gloo: {error}") from error
        return {}

    async def _meet(self) -> GlooGroup:
        """Everybody finds the others through a file that only this user can read. Raises EngineError."""
        size = 1 + sum(engine.num_workers for engine in self._engines)
        with tempfile.TemporaryDirectory(prefix="agentrl-gloo-") as folder:
            place = {"meeting_file": str(Path(folder) / "ranks"), "size": size, "timeout_s": self._timeout_s}
            meeting, rank = [], 1
            for engine in self._engines:
                meeting.append(asyncio.ensure_future(engine.meet("gloo", place | {"first_rank": rank})))
                rank += engine.num_workers
            own = asyncio.ensure_future(asyncio.to_thread(self._open, Path(folder) / "ranks", size))
            await asyncio.wait([own, *meeting])
            await all_of(meeting)  # an engine that failed says why itself, so that its error comes first
            return own.result()

    def _open(self, meeting_file: Path, size: int) -> GlooGroup:
        try:
            return GlooGroup(meeting_file, rank=0, size=size, timeout_s=self._timeout_s)
        except RuntimeError as error:
            raise EngineError(
                f"trainer and engines did not meet for gloo within {self._timeout_s:g} s: {error}"
            ) from error
