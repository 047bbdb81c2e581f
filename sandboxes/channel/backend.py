"""What the backends over a channel share: a spec's files, and the boxes that are still there at the end."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxBackend, SandboxOptions, SandboxSpec
from agentrl.sandboxes.channel.box import ChannelSandbox

LOGGER = logging.getLogger(__name__)
Box = TypeVar("Box", bound=ChannelSandbox)


class ChannelBackend(SandboxBackend, Generic[Box]):
    """A backend says how a box is opened."""

    def __init__(self, options: SandboxOptions, *, run: str) -> None:
        super().__init__(options, run=run)
        self._boxes: list[Box] = []

    @abstractmethod
    async def open(self, spec: SandboxSpec) -> Box:
        """A box whose server answers. Raises SandboxError, and leaves nothing then."""

    async def start(self, spec: SandboxSpec) -> Box:
        """Raises SandboxError, or the OSError of a file of the spec that can't be written."""
        check(spec)
        box = await self.open(spec)
        self._boxes = [other for other in self._boxes if not other.is_stopped] + [box]
        try:
            for path, content in spec.files.items():
                await box.write(path, content)
        except BaseException:
            await box.stop()
            raise
        return box

    async def close(self) -> None:
        """One that can't be stopped keeps none of the others."""
        ends = await asyncio.gather(*(box.stop() for box in self._boxes), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                LOGGER.warning("a box could not be stopped, it is left to its lifetime: %s", end)


def check(spec: SandboxSpec) -> None:
    """Raises SandboxError for what no box can be made from."""
    if spec.base is not None and not Path(spec.base).is_dir():
        what = f"SandboxSpec.base={spec.base!r}: no folder there; restore it, or drop the task"
        raise SandboxError(what, SandboxFault.IMAGE)  # as with an image: another try doesn't help
    problem = None
    if spec.user <= 0:
        problem = f"user={spec.user}: a box's user is never root; use 1 or more"
    if not spec.workdir.startswith("/") or spec.workdir.rstrip("/") in ("", "/tmp"):
        problem = f"workdir={spec.workdir!r}: name an absolute folder of its own"
    if problem is not None:
        raise SandboxError(f"SandboxSpec.{problem}", SandboxFault.UNAVAILABLE)  # no try after this one can help
