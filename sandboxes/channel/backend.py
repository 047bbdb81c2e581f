"""What the backends over a channel share: a spec's files, and the boxes that are still there at the end."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxBackend, SandboxOptions, SandboxSpec
from agentrl.sandboxes.channel.box import ChannelSandbox

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
        for box in self._boxes:
            await box.stop()


def check(spec: SandboxSpec) -> None:
    """Raises SandboxError for what no box can be made from."""
    problem = None
    if spec.base is not None and not Path(spec.base).is_dir():
        problem = f"base={spec.base!r}: no folder there; restore it, or drop the task"
    if spec.user <= 0:
        problem = f"user={spec.user}: a box's user is never root; use 1 or more"
    if not spec.workdir.startswith("/") or spec.workdir.rstrip("/") in ("", "/tmp"):
        problem = f"workdir={spec.workdir!r}: name an absolute folder of its own"
    if problem is not None:
        raise SandboxError(f"SandboxSpec.{problem}", SandboxFault.START)
