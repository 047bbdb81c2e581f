"""Weights to engines in other processes: one flow for all of them, whatever carries the tensors.

    prepare ─▶ hold replies ─▶ pause all ─▶ begin all ─▶ deliver ─▶ compare checksums ─▶ end all ─▶ resume all
            ─▶ score the canary on every engine ─▶ deliver replies

A delivery that fails, or brings other bytes than were sent, is made once more while all are paused. If that fails too,
every engine ends, so that nobody samples from weights that nobody can name.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch

from agentrl.errors import EngineError, PublishError
from agentrl.interrupts import uninterrupted
from agentrl.sync.base import (
    Canary,
    InFlight,
    PauseMode,
    PublishReport,
    RemoteReceiver,
    WeightSync,
    canary_delta,
    proof_of,
)
from agentrl.transfer import Manifest, checksum, listed

MAX_TRIES = 2
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """The tensors of one update, each once."""

    tensors: dict[str, torch.Tensor]
    """Contiguous; on the CPU where the transport wants them there, else where the trainer has them."""
    tied: dict[str, str]
    """Further names, and the name above whose tensor each shares."""
    manifest: Manifest = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "manifest", Manifest.of(self.tensors, self.tied))

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, torch.Tensor]], *, on_cpu: bool) -> Sent:
        """Nothing is copied that lies right already. Raises PublishError where a name comes twice."""
        kept: dict[str, torch.Tensor] = {}
        tied: dict[str, str] = {}
        owner, last = "", None
        for name, tensor in tensors:
            if name in kept or name in tied:
                raise PublishError(f"sent more than once: {name}. Send each name once")
            if tensor is last:
                tied[name] = owner
                continue
            owner, last = name, tensor
            kept[name] = (tensor.detach().cpu() if on_cpu else tensor.detach()).contiguous()
        return cls(tensors=kept, tied=tied)

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def checksums(self) -> dict[str, str]:
        """BLAKE3 (hex) of each tensor's bytes, under all its names. Blocks."""
        sums = {name: checksum(tensor) for name, tensor in self.tensors.items()}
        return sums | {other: sums[name] for other, name in self.tied.items()}


class Transport(ABC):
    """How tensors get to all engines together. One file per way."""

    on_cpu: ClassVar[bool] = True
    """Must tensors be on the CPU?"""

    @abstractmethod
    def connect(self, engines: Sequence[RemoteReceiver]) -> None:
        """Say once who receives."""

    @abstractmethod
    async def prepare(self, sent: Sent) -> None:
        """What can be done before the engines expect anything; done again before a delivery is repeated.

        Raises EngineError.
        """

    @abstractmethod
    async def deliver(self, sent: Sent) -> list[dict[str, str]]:
        """Have every engine load the tensors: what each says that arrived (RemoteReceiver.receive).

        Raises EngineError, in bounded time also where an engine dies.
        """

    def clean(self) -> None:  # noqa: B027 - most have nothing to clean
        """Remove what a publish has left."""

    def close(self) -> None:  # noqa: B027 - the same
        """Let go of the engines. May be called more than once."""


class RemoteSync(WeightSync[RemoteReceiver]):
    """See the module. `tolerance`: nats by which an engine may differ from the trainer on the canary."""

    def __init__(self, transport: Transport, *, pause_mode: PauseMode = "keep", tolerance: float = 1e-3) -> None:
        self._transport = transport
        self._pause_mode = pause_mode
        self._tolerance = tolerance
        self._engines: list[RemoteReceiver] = []

    def connect(self, model: torch.nn.Module, engines: Sequence[RemoteReceiver]) -> None:
        """See WeightSync."""
        if not engines:
            raise PublishError("no engine to send weights to: start one before connecting")
        self._engines = list(engines)
        self._transport.connect(self._engines)

    async def publish(
        self, version: int, tensors: Iterator[tuple[str, torch.Tensor]], canary: Canary, in_flight: InFlight
    ) -> PublishReport:
        """See WeightSync. The engines serve while the transport prepares."""
        if not self._engines:
            raise PublishError(f"version {version} can't be sent: the sync is not connected to an engine")
        started = time.perf_counter()
        sent = Sent.of(tensors, on_cpu=self._transport.on_cpu)
        sums = asyncio.create_task(asyncio.to_thread(sent.checksums))
        try:
            await uninterrupted(self._prepare(version, sent))
            with in_flight.hold():
                deltas = await uninterrupted(self._publish_all(version, sent, sums, canary))
        finally:
            await asyncio.wait([sums])  # it reads the trainer's memory
            self._transport.clean()
        return PublishReport(
            version=version,
            seconds=time.perf_counter() - started,
            bytes=sent.num_bytes * len(self._engines),
            proof=proof_of(canary, max(deltas)),
            canary_delta=max(deltas),
            significance=canary.significance,
        )

    def close(self) -> None:
        """See WeightSync."""
        self._engines = []
        self._transport.close()

    async def _prepare(self, version: int, sent: Sent) -> None:
        try:
            await self._transport.prepare(sent)
        except EngineError as error:
            raise PublishError(
                f"version {version} could not be sent, the engines hold the one before: {error}"
            ) from error

    async def _publish_all(
        self, version: int, sent: Sent, sums: Awaitable[dict[str, str]], canary: Canary
    ) -> list[float]:
        """max |engine - expected| of the canary, per engine. Whatever goes wrong, no engine serves after it."""
        try:
            canary_ids = canary.prompt_ids + canary.forced_ids
            await all_of(engine.pause(self._pause_mode, canary_ids) for engine in self._engines)
            await self._update(version, sent, sums)
            await all_of(engine.end_update(version) for engine in self._engines)
            await all_of(engine.resume() for engine in self._engines)
            return await all_of(self._score(engine, version, canary) for engine in self._engines)
        except BaseException as error:
            await all_of(engine.stop() for engine in self._engines)
            if isinstance(error, EngineError | PublishError):
                raise PublishError(
                    f"version {version} could not be put in force, all engines were ended: {error}"
                ) from error
            raise

    async def _update(self, version: int, sent: Sent, sums: Awaitable[dict[str, str]]) -> None:
        for number in range(MAX_TRIES):
            try:
                await all_of(engine.begin_update() for engine in self._engines)  # an engine that is dead says so here
                if number:
                    await self._transport.prepare(sent)
                arrived = await self._transport.deliver(sent)
                for engine, its in zip(self._engines, arrived, strict=True):
                    _compare(engine.name, version, its, await sums)
                return
            except (EngineError, PublishError):
                if number == MAX_TRIES - 1:
                    raise

    async def _score(self, engine: RemoteReceiver, version: int, canary: Canary) -> float:
        scored = await engine.score(canary.prompt_ids, canary.forced_ids)
        return canary_delta(engine.name, version, scored, canary, self._tolerance)


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of all. Every call has ended before an error is raised; the errors of several engines become one."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if len(errors) > 1 and all(isinstance(error, EngineError) for error in errors):
        raise EngineError("; ".join(map(str, errors))) from errors[0]
    if errors:
        raise errors[0]
    return [result for result in results if not isinstance(result, BaseException)]


def _compare(name: str, version: int, arrived: dict[str, str], sums: dict[str, str]) -> None:
    wrong = [tensor for tensor in sums.keys() | arrived.keys() if sums.get(tensor) != arrived.get(tensor)]
    if wrong:
        raise PublishError(
            f"engine {name!r} did not take version {version}: other bytes than were sent arrived for {listed(wrong)}"
        )
