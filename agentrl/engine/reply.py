"""A request while it runs, and what was sampled for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from agentrl.engine.requests import GenerateRequest
from agentrl.engine.sampling import Noise, Row

FinishReason = Literal["stop", "length", "abort"]


class EngineUnavailable(Exception):
    """Nothing is served now: stopped, dead, or the weights can't be trusted. HTTP 503."""


class EngineFault(Exception):
    """A request that was accepted failed through no fault of its own. HTTP 500."""


def _started_future() -> Future[Reply]:
    """A future that its waiter can't cancel: the loop alone resolves it."""
    future: Future[Reply] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(kw_only=True, slots=True, eq=False)
class Reply:
    """What one request has so far; ids, logprobs and versions agree in length.

    The loop's thread adds to it and any thread may end it: what is read after its future has resolved is final.
    """

    key: str
    """The request's name inside the loop."""
    request: GenerateRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """The version of the weights that each id was sampled from."""
    finish_reason: FinishReason | None = None
    done: Future[Reply] = field(default_factory=_started_future)
    noise: Noise = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.noise = Noise(self.request.seed)

    def next_row(self) -> Row:
        """How the next id is chosen."""
        request = self.request
        forced = request.forced_ids
        return Row(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            uniform=self.noise.next() if request.temperature > 0 and forced is None else 0.0,
            forced=None if forced is None else forced[len(self.ids)],
        )

    def add(self, token: int, logprob: float, version: int) -> None:
        """Record one sampled id; ignored once the reply has ended."""
        with self._lock:
            if not self.done.done():
                self.ids.append(token)
                self.logprobs.append(logprob)
                self.versions.append(version)

    def finish(self, reason: FinishReason) -> None:
        """Resolve the future with this reply."""
        with self._lock:
            if not self.done.done():
                self.finish_reason = reason
                self.done.set_result(self)

    def fail(self, error: Exception) -> None:
        """Resolve the future with an error."""
        with self._lock:
            if not self.done.done():
                self.done.set_exception(error)

    def version_spans(self) -> list[tuple[int, int, int]]:
        """(version, start, end) over ids, without gaps."""
        spans: list[tuple[int, int, int]] = []
        for index, version in enumerate(self.versions):
            if spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1], index + 1)
            else:
                spans.append((version, index, index + 1))
        return spans
