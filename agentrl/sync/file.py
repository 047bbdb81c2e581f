"""Weights by a file, for engines that see the same disk. It always works, on a CPU too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import EngineError
from agentrl.sync.base import RemoteReceiver
from agentrl.sync.remote import Sent, Transport, all_of
from agentrl.transfer import write_file


class FileTransport(Transport):
    """`folder`: on the disk that all share. One file at a time is in it, while weights are published."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "weights.safetensors"
        self._engines: list[RemoteReceiver] = []
        self._has_met = False

    def connect(self, engines: Sequence[RemoteReceiver]) -> None:
        """See Transport."""
        self._engines, self._has_met = list(engines), False
        self.clean()  # what a run has left that was killed in a publish

    async def prepare(self, sent: Sent) -> None:
        """Write and flush the file. Raises OSError too."""
        if not self._has_met:
            await all_of(engine.meet("file", {}) for engine in self._engines)
            self._has_met = True
        await asyncio.to_thread(write_file, self._path, sent.tensors)

    async def deliver(self, sent: Sent) -> list[dict[str, str]]:
        """See Transport."""
        options = {"path": str(self._path.absolute())}
        try:
            return await all_of(engine.receive(sent.manifest, options) for engine in self._engines)
        except EngineError:
            self._has_met = False
            raise

    def clean(self) -> None:
        """See Transport."""
        for path in self._path.parent.glob("weights.*"):
            path.unlink()
