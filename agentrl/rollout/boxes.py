"""The boxes of a run: started ahead, bounded in number and memory, each for one episode and never used again.

    take ─▶ [one that was started ahead?] ─▶ image ─▶ [room, in turn] ─▶ [pace] ─▶ start, again where the fault may pass
         ─▶ does it answer? ─▶ LentBox ─▶ stop: the room is free for the next

Whoever waits here waits outside of every time limit of an episode.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from agentrl.config_sandbox import SandboxConfig
from agentrl.errors import SandboxError, SandboxFault
from agentrl.lent_box import LentBox
from agentrl.rollout.admission import Pace, Room, memory_for_boxes
from agentrl.rollout.backends import Backends, Tell
from agentrl.rollout.faults import with_causes
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.threads import contained
from agentrl.sandbox import Sandbox, SandboxBackend, SandboxSpec

LOGGER = logging.getLogger(__name__)
ANSWER_S = 10.0
"""How long a box that was started ahead may take to show that it lives."""
SPARE_S = 300.0
"""By which a box may outlive what it is lent for, before it ends by itself."""
FIRST_WAIT_S = 1.0
"""At most, before a start is tried again; it doubles from try to try."""
FORGET_IMAGE_S = 600.0
"""After this an image that was missing is asked for again."""
_MAY_PASS = frozenset({SandboxFault.START, SandboxFault.DIED, SandboxFault.HOST_FULL, SandboxFault.CHANNEL})
T = TypeVar("T")
Kind = tuple[Any, ...]
"""Boxes of one kind can stand in for each other: their specs are equal."""


async def _at_once() -> None:
    pass


@dataclass(slots=True)
class _Ahead:
    """A box that is being started, or was, before anybody asked for it."""

    kind: Kind
    memory_bytes: int
    start: asyncio.Task[Sandbox | None]
    """None: it failed, and its room is free again."""
    idle: asyncio.TimerHandle | None = None


class Boxes:
    """Lends boxes to episodes and graders; a context manager."""

    def __init__(self, config: SandboxConfig, *, run: str, tell: Tell = lambda kind, **values: None) -> None:
        """`tell` hears of each backend that is opened and of each image that is missing."""
        self.config = config
        self.backends = Backends(config, run, tell)
        self.room = Room(config.max_boxes, memory_for_boxes(config.max_memory_gib))
        self.missing_images: dict[str, str] = {}
        """Image, or base folder → why the run had to go on without the tasks that need it."""
        self._tell = tell
        self._pace = Pace(config.starts_per_second)
        self._retry = RetryPolicy(max_tries=config.max_start_tries, wait_s=FIRST_WAIT_S)
        self._ahead: list[_Ahead] = []
        self._lent: set[LentBox] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._image_faults: dict[str, tuple[float, SandboxError]] = {}

    async def require(self, specs: Iterable[SandboxSpec]) -> None:
        """See that such boxes can be had here. Raises ConfigError with what is missing on this machine."""
        await self.backends.require(specs)

    async def take(self, spec: SandboxSpec, *, hold_s: float) -> LentBox:
        """A box that nobody used before; its `stop` gives it back, and after `hold_s` it is taken back (G13).

        It lives at least that long, whatever `spec.lifetime_s` says (F07). Raises SandboxError.
        """
        spec = replace(spec, lifetime_s=max(spec.lifetime_s, hold_s + self.config.idle_timeout_s + SPARE_S))
        await self.backends.get(self.config.backend_of(spec))
        box = await self._take_ahead(spec) or await self._start_in_room(spec)
        lent = LentBox(box, hold_s=hold_s, on_end=lambda: self._take_back(lent, spec))
        self._lent.add(lent)
        self._start_ahead(spec)
        return lent

    async def close(self) -> None:
        """Stop all that is there and close the backends."""
        for ahead in list(self._ahead):
            self._end_idle(ahead)
        await asyncio.gather(*(box.stop() for box in list(self._lent)), *self._ending)
        await self.backends.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # ---- started ahead ----

    async def _take_ahead(self, spec: SandboxSpec) -> Sandbox | None:
        """The first of its kind that lives; None: there is none."""
        kind = _kind(spec)
        while (ahead := next((ahead for ahead in self._ahead if ahead.kind == kind), None)) is not None:
            self._remove(ahead)
            try:
                box = await asyncio.shield(ahead.start)
                if box is None or await _answers(box):
                    return box
            except asyncio.CancelledError:  # somebody else may want it
                self._put(ahead)
                raise
            LOGGER.warning("a box that was started ahead has died; it is replaced")
            await asyncio.shield(self._end(ahead))
        return None

    def _start_ahead(self, spec: SandboxSpec) -> None:
        kind = _kind(spec)
        num_ahead = sum(ahead.kind == kind for ahead in self._ahead)
        for _ in range(num_ahead, self.config.warm):
            if not self.room.try_enter(self._memory_bytes(spec)):
                return
            self._put(_Ahead(kind, self._memory_bytes(spec), asyncio.create_task(self._start_or_leave(spec))))

    async def _start_or_leave(self, spec: SandboxSpec) -> Sandbox | None:
        try:
            return await self._start(spec)
        except BaseException as error:
            self.room.leave(self._memory_bytes(spec))
            if not isinstance(error, SandboxError):
                raise
            return None  # whoever needs it will see the same, and say so

    def _put(self, ahead: _Ahead) -> None:
        loop = asyncio.get_running_loop()
        ahead.idle = loop.call_later(self.config.idle_timeout_s, self._end_idle, ahead)
        self._ahead.append(ahead)

    def _remove(self, ahead: _Ahead) -> None:
        self._ahead.remove(ahead)
        if ahead.idle is not None:
            ahead.idle.cancel()

    def _end_idle(self, ahead: _Ahead) -> None:
        """Nobody came for it."""
        self._remove(ahead)
        task = asyncio.create_task(self._end(ahead))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _make_room(self) -> bool:
        """End the oldest box that was started ahead, of whatever kind; False: there is none."""
        if not self._ahead:
            return False
        oldest = self._ahead[0]
        self._remove(oldest)
        await asyncio.shield(self._end(oldest))
        return True

    async def _end(self, ahead: _Ahead) -> None:
        ahead.start.cancel()
        (box,) = await asyncio.gather(ahead.start, return_exceptions=True)
        if isinstance(box, Sandbox):
            await LentBox(box, hold_s=SPARE_S, on_end=lambda: self.room.leave(ahead.memory_bytes)).stop()

    # ---- starts ----

    async def _start_in_room(self, spec: SandboxSpec) -> Sandbox:
        await self._tried(spec, self._backend(spec).prepare)
        await self.room.enter(self._memory_bytes(spec), self._make_room)
        try:
            return await self._start(spec)
        except BaseException:
            self.room.leave(self._memory_bytes(spec))
            raise

    async def _start(self, spec: SandboxSpec) -> Sandbox:
        return await self._tried(spec, self._backend(spec).start, self._pace.wait)

    async def _tried(
        self,
        spec: SandboxSpec,
        do: Callable[[SandboxSpec], Awaitable[T]],
        turn: Callable[[], Awaitable[None]] = _at_once,
    ) -> T:
        """Raises SandboxError: the last one, or at once where another try can't help. `turn`: waits before each try."""
        self._check_image(spec)
        num_failed = 0
        while True:
            await turn()
            try:
                return await self._once(spec, do)
            except SandboxError as error:
                num_failed += 1
                if error.kind is SandboxFault.IMAGE:
                    self._remember_image(spec, error)
                if error.kind not in _MAY_PASS or num_failed >= self._retry.max_tries:
                    raise
                LOGGER.warning("a box didn't start, it is tried again: %s", error)
            await asyncio.sleep(self._retry.wait(num_failed, None))

    def _backend(self, spec: SandboxSpec) -> SandboxBackend:
        """It is open: `take` has seen to that."""
        return self.backends.opened(self.config.backend_of(spec))

    def _memory_bytes(self, spec: SandboxSpec) -> int:
        return self._backend(spec).memory_bytes(spec)

    async def _once(self, spec: SandboxSpec, do: Callable[[SandboxSpec], Awaitable[T]]) -> T:
        limit_s = self.config.start_timeout_s
        limit = asyncio.timeout(limit_s)
        try:
            with contained():
                async with limit:
                    return await do(spec)
        except SandboxError:
            raise
        except Exception as error:
            what = with_causes(error)
            if limit.expired():
                what = f"it was not ready after {limit_s:g} s (sandbox.start_timeout_s)"
                what += f"; its image {spec.image} may be still on its way: pull it ahead" if spec.image else ""
            raise SandboxError(
                f"the sandbox {self.config.backend_of(spec)} gave no box: {what}", SandboxFault.START
            ) from error

    # ---- images ----

    def _check_image(self, spec: SandboxSpec) -> None:
        """Nobody waits again for an image, or a base folder, that isn't there."""
        since, fault = self._image_faults.get(spec.image or spec.base or "", (0.0, None))
        if fault is not None and time.monotonic() - since < FORGET_IMAGE_S:
            raise SandboxError(str(fault), SandboxFault.IMAGE)

    def _remember_image(self, spec: SandboxSpec, error: SandboxError) -> None:
        image = spec.image or spec.base
        if image is None:
            return
        self._image_faults[image] = (time.monotonic(), error)
        if image not in self.missing_images:
            self.missing_images[image] = str(error)
            self._tell("image_missing", image=image, error=str(error))

    def _take_back(self, lent: LentBox, spec: SandboxSpec) -> None:
        self._lent.discard(lent)
        self.room.leave(self._memory_bytes(spec))


async def lend(boxes: Boxes | None, spec: SandboxSpec | None, *, hold_s: float) -> LentBox | None:
    """The box that was asked for, if one was. Raises SandboxError, also where there are no boxes at all."""
    if spec is None:
        return None
    if boxes is None:
        raise SandboxError(
            "the environment asks for a box, and its AgentLoop was made without: pass boxes=Boxes(…)",
            SandboxFault.UNAVAILABLE,
        )
    return await boxes.take(spec, hold_s=hold_s)


async def _answers(box: Sandbox) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await box.is_alive()
    except TimeoutError:
        return False


def _kind(spec: SandboxSpec) -> Kind:
    values = (getattr(spec, field.name) for field in fields(spec))
    return tuple(frozenset(value.items()) if isinstance(value, Mapping) else value for value in values)
