"""Weights by memory: trainer and engines are in one process, the engine copies in place.

Order of a publish: hold replies → load each engine → compare checksums → score the canary → deliver replies. An
engine that fails any of it refuses to serve, so that nobody samples from weights that nobody can name.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from agentrl.errors import PublishError
from agentrl.interrupts import uninterrupted
from agentrl.sync.base import (
    Canary,
    InFlight,
    LoadReport,
    PublishReport,
    WeightReceiver,
    WeightSync,
    canary_delta,
    proof_of,
)
from agentrl.transfer import checksum

Named = list[tuple[str, torch.Tensor]]

_MAX_NAMES = 4
"""Names that an error lists before it only counts."""


class MemorySync(WeightSync[WeightReceiver]):
    """Tensors by reference. `tolerance`: nats by which an engine may differ from the trainer on the canary."""

    def __init__(self, *, tolerance: float = 1e-3) -> None:
        self._tolerance = tolerance
        self._engines: list[WeightReceiver] = []

    def connect(self, model: torch.nn.Module, engines: Sequence[WeightReceiver]) -> None:
        """See WeightSync. Names are compared at each publish, with what is sent then."""
        if not engines:
            raise PublishError("no engine to send weights to: start one before connecting")
        if not any(True for _ in model.parameters()):
            raise PublishError(f"the trainer's {type(model).__name__} has no parameters to send")
        self._engines = list(engines)

    async def publish(
        self, version: int, tensors: Iterator[tuple[str, torch.Tensor]], canary: Canary, in_flight: InFlight
    ) -> PublishReport:
        """See WeightSync. The tensors are listed first: each engine needs them all, before serving pauses."""
        if not self._engines:
            raise PublishError(f"version {version} can't be sent: the sync is not connected to an engine")
        started = time.perf_counter()
        sent = list(tensors)
        with in_flight.hold():
            deltas = [await self._publish_to(engine, version, sent, canary) for engine in self._engines]
        return PublishReport(
            version=version,
            seconds=time.perf_counter() - started,
            bytes=sum(_num_bytes(engine, sent) for engine in self._engines),
            proof=proof_of(canary, max(deltas)),
            canary_delta=max(deltas),
            significance=canary.significance,
        )

    def close(self) -> None:
        """See WeightSync."""
        self._engines = []

    async def _publish_to(self, engine: WeightReceiver, version: int, sent: Named, canary: Canary) -> float:
        """Load and prove one engine; the canary's delta. Whatever goes wrong, the engine then refuses to serve."""
        try:
            # To the end even when cancelled: a load that ends later would undo the refusal.
            await uninterrupted(asyncio.to_thread(_load, engine, version, sent))
            await uninterrupted(asyncio.to_thread(_prove_checksums, engine, version, sent))
            return await self._score(engine, version, canary)
        except BaseException as error:
            engine.refuse(f"version {version} is not proved ({error}); publish again or restart the engine")
            if isinstance(error, PublishError) or not isinstance(error, Exception):
                raise
            raise PublishError(_where(engine, version) + f"{error!r}. Look at the engine's log, then resume") from error

    async def _score(self, engine: WeightReceiver, version: int, canary: Canary) -> float:
        scored = await engine.score(canary.prompt_ids, canary.forced_ids)
        return canary_delta(engine.name, version, scored, canary, self._tolerance)


def _load(engine: WeightReceiver, version: int, sent: Named) -> None:
    twice = [name for name, count in Counter(name for name, _ in sent).items() if count > 1]
    if twice:
        raise PublishError(_where(engine, version) + f"sent more than once: {_names(twice)}. Send each name once")
    report = engine.load(version, sent)
    problems = _problems(report)
    if problems:
        raise PublishError(
            _where(engine, version) + "; ".join(problems) + ". The names sent must be those of the model folder that "
            "the engine loaded"
        )
    if engine.version != version:
        raise PublishError(
            _where(engine, version) + f"it still says version {engine.version} after the load. Restart it and resume"
        )


def _problems(report: LoadReport) -> list[str]:
    kinds = (
        ("missing from what was sent", report.missing),
        ("unexpected by the engine", report.unexpected),
        ("of another shape", report.mismatched),
    )
    return [f"{what}: {_names(names)}" for what, names in kinds if names]


def _prove_checksums(engine: WeightReceiver, version: int, sent: Named) -> None:
    """Every tensor that was sent, cast as the engine holds it, against what the engine holds."""
    dtypes, held = engine.dtypes(), engine.checksums()
    known: dict[tuple[int, torch.Size, torch.dtype], str] = {}  # tied tensors are read once
    wrong = []
    for name, tensor in sent:
        place = (tensor.data_ptr(), tensor.shape, dtypes[name])
        if place not in known:
            known[place] = checksum(tensor.to(dtypes[name]))
        if held.get(name) != known[place]:
            wrong.append(name)
    if wrong:
        raise PublishError(
            _where(engine, version) + f"the engine holds other bytes than were sent for {_names(wrong)}. If one of "
            "two tied tensors is named, trainer and engine disagree on tying; otherwise restart the engine and resume"
        )


def _num_bytes(engine: WeightReceiver, sent: Named) -> int:
    dtypes = engine.dtypes()
    return sum(tensor.numel() * dtypes[name].itemsize for name, tensor in sent)


def _where(engine: WeightReceiver, version: int) -> str:
    return f"engine {engine.name!r} did not take version {version}: "


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
