"""A sandbox backend that fails by plan: starts that fail or hang, boxes that are born dead or die in mid-command.

What runs in its boxes is run by another backend, `local` unless told otherwise, whose box is started when it is first
used: a test of thousands of starts costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from agentrl import plugins
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import (
    DEFAULT_FILE_BYTES,
    DEFAULT_OUTPUT_BYTES,
    Command,
    ExecResult,
    Preflight,
    Sandbox,
    SandboxBackend,
    SandboxOptions,
    SandboxSpec,
    Session,
)

T = TypeVar("T")
DEATH_S = 0.1
"""After the beginning of the command in which a box dies."""


class FaultyOptions(SandboxOptions):
    """The plan. Numbers count from the first start of the backend, or the first command of a box."""

    inner: str = "local"
    inner_options: dict[str, Any] = {"unsafe": True}  # noqa: RUF012 - pydantic copies it
    missing: tuple[str, ...] = ()
    """What preflight finds missing."""
    not_enforced: tuple[str, ...] = ()
    missing_images: tuple[str, ...] = ()
    pull_s: float = 0.0
    """For each box whose spec has an image."""
    start_s: float = 0.0
    failing_starts: int = 0
    fault: SandboxFault = SandboxFault.START
    """Of those."""
    hanging_starts: int = 0
    """After those that fail."""
    dead_boxes: int = 0
    """So many of the first boxes answer nobody."""
    dies_in_command: int | None = None
    """Which command of each box, from 0, is its last."""
    stop_s: float = 0.0


class FaultySandboxes(SandboxBackend):
    """See the module. What was asked of it can be looked at."""

    Options = FaultyOptions
    options: FaultyOptions

    def __init__(self, options: SandboxOptions, *, run: str) -> None:
        super().__init__(options, run=run)
        self.num_starts = 0
        self.num_living = 0
        self.max_living = 0
        self.boxes: list[FaultyBox] = []
        self._inner: SandboxBackend | None = None

    async def preflight(self) -> Preflight:
        plan = self.options
        return Preflight(missing=plan.missing, not_enforced=plan.not_enforced, is_closed=False)

    async def prepare(self, spec: SandboxSpec) -> None:
        await asyncio.sleep(self.options.pull_s if spec.image else 0)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        plan, number = self.options, self.num_starts
        self.num_starts += 1
        if spec.image in plan.missing_images:
            raise SandboxError(f"image {spec.image} isn't there: pull it", SandboxFault.IMAGE)
        if number < plan.failing_starts:
            raise SandboxError(f"start {number} fails by plan", plan.fault)
        if number < plan.failing_starts + plan.hanging_starts:
            await asyncio.Event().wait()
        await asyncio.sleep(plan.start_s)
        box = FaultyBox(self, spec, is_dead=len(self.boxes) < plan.dead_boxes)
        self.boxes.append(box)
        self.num_living += 1
        self.max_living = max(self.max_living, self.num_living)
        return box

    async def start_inner(self, spec: SandboxSpec) -> Sandbox:
        """The box behind a box."""
        if self._inner is None:
            kind = plugins.sandbox(self.options.inner)
            self._inner = kind(kind.Options.model_validate(self.options.inner_options), run=self.run)
        return await self._inner.start(spec)

    async def close(self) -> None:
        for box in self.boxes:
            await box.stop()
        if self._inner is not None:
            await self._inner.close()


class FaultyBox(Sandbox):
    """One of its boxes."""

    def __init__(self, backend: FaultySandboxes, spec: SandboxSpec, *, is_dead: bool) -> None:
        self.backend = backend
        self.spec = spec
        self.is_dead = is_dead
        self.is_stopped = False
        self.num_commands = 0
        self._box: Sandbox | None = None

    async def exec(
        self,
        command: Command,
        *,
        timeout_s: float,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        box = await self._inner()
        work = box.exec(
            command,
            timeout_s=timeout_s,
            cwd=cwd,
            environment=environment,
            stdin=stdin,
            max_output_bytes=max_output_bytes,
        )
        return await self.as_command(work)

    async def session(self) -> Session:
        return _FaultySession(self, await (await self._inner()).session())

    async def read(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        return await (await self._inner()).read(path, max_bytes=max_bytes)

    async def read_tree(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        return await (await self._inner()).read_tree(path, max_bytes=max_bytes)

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        await (await self._inner()).write(path, content, executable=executable)

    async def write_tree(self, path: str, archive: bytes) -> None:
        await (await self._inner()).write_tree(path, archive)

    async def is_alive(self) -> bool:
        return not (self.is_dead or self.is_stopped) and (self._box is None or await self._box.is_alive())

    async def stop(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        await asyncio.sleep(self.backend.options.stop_s)
        if self._box is not None:
            await self._box.stop()
        self.backend.num_living -= 1

    async def as_command(self, work: Awaitable[T]) -> T:
        """The result; in its last command the box dies."""
        number, self.num_commands = self.num_commands, self.num_commands + 1
        if number != self.backend.options.dies_in_command:
            return await work
        assert self._box is not None
        running = asyncio.ensure_future(work)
        await asyncio.wait({running}, timeout=DEATH_S)
        self.is_dead = True
        await self._box.stop()
        await asyncio.gather(running, return_exceptions=True)
        raise self._gone()

    async def _inner(self) -> Sandbox:
        if self.is_dead or self.is_stopped:
            raise self._gone()
        if self._box is None:
            self._box = await self.backend.start_inner(self.spec)
        return self._box

    def _gone(self) -> SandboxError:
        return SandboxError(f"box {self.backend.boxes.index(self)} is gone, by plan", SandboxFault.DIED)


class _FaultySession(Session):
    def __init__(self, box: FaultyBox, session: Session) -> None:
        self.box = box
        self.inner = session

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES) -> ExecResult:
        return await self.box.as_command(
            self.inner.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        )

    async def close(self) -> None:
        await self.inner.close()
