"""Weights by a file: for engines in other processes that see the same disk. It always works, on a CPU too.

Order of a publish: write and flush the file → hold replies → on every engine pause, load, compare checksums, put in
force → resume all → score the canary on every engine → deliver replies. An update that fails is sent once more while
all are paused; if that fails too, every engine ends, so that nobody samples from weights that nobody can name.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from agentrl.errors import EngineError, PublishError
from agentrl.interrupts import uninterrupted
from agentrl.sync.base import (
    Canary,
    InFlight,
    PublishReport,
    RemoteReceiver,
    WeightSync,
    canary_delta,
    checksum,
    proof_of,
)

MAX_TRIES = 2


class FileSync(WeightSync[RemoteReceiver]):
    """`folder`: on the disk that all share. `tolerance`: nats by which an engine may differ on the canary."""

    def __init__(self, folder: Path, *, tolerance: float = 1e-3) -> None:
        self._folder = folder
        self._tolerance = tolerance
        self._engines: list[RemoteReceiver] = []

    def connect(self, model: torch.nn.Module, engines: Sequence[RemoteReceiver]) -> None:
        """See WeightSync."""
        if not engines:
            raise PublishError("no engine to send weights to: start one before connecting")
        self._engines = list(engines)
        for left in self._folder.glob("version-*"):  # of a run that was killed in a publish
            left.unlink()

    async def publish(
        self, version: int, tensors: Iterator[tuple[str, torch.Tensor]], canary: Canary, in_flight: InFlight
    ) -> PublishReport:
        """See WeightSync. The engines serve while the file is written."""
        started = time.perf_counter()
        sent = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        path = self._folder / f"version-{version}.safetensors"
        try:
            await uninterrupted(asyncio.to_thread(_write, path, sent))
            sums = await asyncio.to_thread(lambda: {name: checksum(tensor) for name, tensor in sent.items()})
            with in_flight.hold():
                deltas = await uninterrupted(self._publish_all(version, path, sums, canary))
        finally:
            path.unlink(missing_ok=True)
            _partial(path).unlink(missing_ok=True)
        return PublishReport(
            version=version,
            seconds=time.perf_counter() - started,
            bytes=sum(tensor.nbytes for tensor in sent.values()) * len(self._engines),
            proof=proof_of(canary, max(deltas)),
            canary_delta=max(deltas),
            significance=canary.significance,
        )

    def close(self) -> None:
        """See WeightSync."""
        self._engines = []

    async def _publish_all(self, version: int, path: Path, sums: dict[str, str], canary: Canary) -> list[float]:
        try:
            await asyncio.gather(*(engine.pause() for engine in self._engines))
            await asyncio.gather(*(self._update(engine, version, path, sums) for engine in self._engines))
            await asyncio.gather(*(engine.resume() for engine in self._engines))
            return list(await asyncio.gather(*(self._score(engine, version, canary) for engine in self._engines)))
        except BaseException as error:
            await asyncio.gather(*(engine.stop() for engine in self._engines))
            if isinstance(error, EngineError):
                raise PublishError(
                    f"version {version} could not be put in force, all engines were ended: {error}"
                ) from error
            raise

    async def _update(self, engine: RemoteReceiver, version: int, path: Path, sums: dict[str, str]) -> None:
        for attempt in range(MAX_TRIES):
            try:
                await engine.begin_update()
                arrived = await engine.take_file(path)
                break
            except EngineError:
                if attempt == MAX_TRIES - 1:
                    raise
        _compare(engine.name, version, arrived, sums)
        await engine.end_update(version)

    async def _score(self, engine: RemoteReceiver, version: int, canary: Canary) -> float:
        scored = await engine.score(canary.prompt_ids, canary.forced_ids)
        return canary_delta(engine.name, version, scored, canary, self._tolerance)


def _write(path: Path, sent: dict[str, torch.Tensor]) -> None:
    """The whole file or none: engines never see half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.clone() for name, tensor in sent.items()}, _partial(path))
    with _partial(path).open("rb") as file:
        os.fsync(file.fileno())
    _partial(path).rename(path)


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial")


def _compare(name: str, version: int, arrived: dict[str, str], sums: dict[str, str]) -> None:
    wrong = sorted(tensor for tensor in sums.keys() | arrived.keys() if sums.get(tensor) != arrived.get(tensor))
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise PublishError(
            f"engine {name!r} did not take version {version}: other bytes than were sent arrived for "
            f"{', '.join(wrong[:4])}{more}"
        )
