"""The WeightSync contract: what it is given, what it reports, and what it needs of an engine.

A publish is complete only when each engine has proved that it holds that version (V2); an answer of "done" is no
proof. Two proofs exist. Checksums compare every tensor's bytes, taken where the engine holds them. A canary compares
logprobs through the serving path, and proves something only where the update moved them by much more than the noise
between trainer and engine; for a small update it would pass with the old weights as well.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch

from agentrl.errors import PublishError
from agentrl.transfer import Manifest

SIGNIFICANT = 10.0
"""A canary proves a version only where old and new logprobs differ by this many times the noise (V2)."""

Proof = Literal["canary", "checksums"]
PauseMode = Literal["keep", "wait", "abort"]
"""What becomes of replies that are being sampled; see SyncConfig.in_flight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Canary:
    """A fixed continuation and what the trainer says of it. The three lists agree in length."""

    prompt_ids: list[int]
    forced_ids: list[int]
    expected: list[float]
    """Logprobs (temperature 1) of forced_ids by the trainer's new weights."""
    previous: list[float]
    """The same by its old weights; equal to `expected` where there are none."""
    noise: float
    """Largest difference in logprob that trainer and engine show for equal weights."""

    @property
    def change(self) -> float:
        """How far the update moved the logprobs: max |expected - previous|."""
        return max(abs(new - old) for new, old in zip(self.expected, self.previous, strict=True))

    @property
    def significance(self) -> float:
        """`change` in units of the noise; infinite where there is no noise but a change."""
        if self.noise > 0:
            return self.change / self.noise
        return math.inf if self.change > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishReport:
    """A publish that was proved for every engine."""

    version: int
    seconds: float
    bytes: int
    """Sent to all engines together."""
    proof: Proof
    """Checksums always agreed; "canary" where the canary was significant as well."""
    canary_delta: float
    """max |engine - expected| over all engines."""
    significance: float
    """See Canary.significance."""


class LoadReport(Protocol):
    """What an engine says of a load; the four are names, `mismatched` with both shapes."""

    @property
    def loaded(self) -> Sequence[str]: ...
    @property
    def missing(self) -> Sequence[str]: ...
    @property
    def unexpected(self) -> Sequence[str]: ...
    @property
    def mismatched(self) -> Sequence[str]: ...


class WeightReceiver(Protocol):
    """What a sync needs of an engine in this process. Methods that aren't async may block."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int:
        """The version in force."""
        ...

    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype that each tensor is held in, under all its names."""
        ...

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
        """Put new weights in force at once; with names missing, unexpected or mismatched, leave the old ones."""
        ...

    def checksums(self) -> dict[str, str]:
        """BLAKE3 (hex) of the bytes of each tensor that is served, in C order, under all its names."""
        ...

    def refuse(self, reason: str) -> None:
        """Serve nothing until a load succeeds."""
        ...

    async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
        """Logprobs and versions of a forced continuation, by the path that serves rollouts."""
        ...


class RemoteReceiver(Protocol):
    """What a sync needs of an engine in another process. All methods raise EngineError.

    `meet` comes first and again after a failure; an update is `pause`, `begin_update`, `receive`, `end_update`,
    `resume`, `score`.
    """

    @property
    def name(self) -> str: ...

    @property
    def num_workers(self) -> int:
        """Processes that hold the model together; each receives every tensor."""
        ...

    async def pause(self, mode: PauseMode, canary_ids: Sequence[int]) -> None:
        """Sample nothing. Where replies are kept, their caches are computed anew when they go on.

        `canary_ids`: what `score` will be asked for after it, prompt and continuation.
        """
        ...

    async def meet(self, transport: str, options: dict[str, Any]) -> None:
        """Agree on how tensors will travel; `options` are the transport's and fit into JSON."""
        ...

    async def begin_update(self) -> None:
        """New weights are on their way. May be called again after an update that failed or wasn't ended."""
        ...

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        """Load the manifest's tensors; BLAKE3 (hex) of the bytes of each as they arrived, under all names."""
        ...

    async def end_update(self, version: int) -> None:
        """Put the weights in force as this version."""
        ...

    async def resume(self) -> None:
        """Sample again."""
        ...

    async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
        """Logprobs and versions of a continuation, by the path that serves rollouts."""
        ...

    async def stop(self) -> None:
        """Serve nothing any more."""
        ...


class InFlight(Protocol):
    """The replies on their way to rollouts."""

    def hold(self) -> AbstractContextManager[object]:
        """Replies that arrive inside are delivered only after a clean exit; after an error they fail."""
        ...


Receiver = TypeVar("Receiver")


class WeightSync(ABC, Generic[Receiver]):
    """Sends the trainer's weights to every engine and proves that they arrived."""

    @abstractmethod
    def connect(self, model: torch.nn.Module, engines: Sequence[Receiver]) -> None:
        """Say once who sends and who receives. Raises PublishError where that can't work."""

    @abstractmethod
    async def publish(
        self, version: int, tensors: Iterator[tuple[str, torch.Tensor]], canary: Canary, in_flight: InFlight
    ) -> PublishReport:
        """Put `version` in force on every engine and prove it; version 0 is proved like any other.

        `tensors` must not change until this returns. Raises PublishError, which names the tensor or the version and
        what to do; no engine with unproved weights serves after it.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of model and engines. May be called more than once."""


def canary_delta(
    name: str, version: int, scored: tuple[Sequence[float], Sequence[int]], canary: Canary, tolerance: float
) -> float:
    """max |engine - expected|. Raises PublishError where the engine serves another version or another model."""
    logprobs, versions = scored
    where = f"engine {name!r} did not take version {version}: "
    stale = sorted({v for v in versions if v != version})
    if stale or len(versions) != len(canary.forced_ids):
        raise PublishError(
            where + f"the canary's ids are stamped with version {stale or 'none'}: the engine serves older weights. "
            "Restart the engine and resume"
        )
    delta = max(abs(got - want) for got, want in zip(logprobs, canary.expected, strict=True))
    if not delta <= tolerance:  # so that NaN fails too
        raise PublishError(
            where + f"the canary's logprobs differ from the trainer's by {delta:.3g} nats, more than {tolerance:.3g}. "
            "Trainer and engine compute different models: check that both load the same architecture and dtype"
        )
    return delta


def proof_of(canary: Canary, delta: float) -> Proof:
    """The canary counts where the update is significant and the engine is nearer to the new weights than the old."""
    return "canary" if canary.significance >= SIGNIFICANT and delta < canary.change / 2 else "checksums"
