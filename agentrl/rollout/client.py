"""The InferenceClient contract: ids in, sampled ids with logprobs and versions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, Protocol

from agentrl.types import EngineCall, Message, Sampler


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How one call samples."""

    max_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    seed: int
    stop_token_ids: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The parameters as stored with the call."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionSpan:
    """[start, end) of the sampled ids came from one policy version; -1: nobody knows which."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What one call sampled. `ids`, `logprobs` and the spans agree in length; the stop id is the last id."""

    request_id: str
    engine: str
    ids: list[int]
    logprobs: list[float]
    spans: list[VersionSpan]
    finish_reason: Literal["stop", "length", "abort"]
    sampler: Sampler = Sampler.ENGINE
    """Who made the ids. All but an engine give no logprobs (NaN) and no versions (no spans, or -1)."""
    message: Message | None = None
    """The reply as its server has read it; None: it is to be parsed from the ids."""
    num_tokens: int | None = None
    """How many tokens the server says that it sampled, where that isn't the number of ids."""
    sampling: dict[str, Any] | None = None
    """What was really asked for, where that isn't all of the turn's parameters."""
    parts: tuple[Generation, ...] = ()
    """The calls behind it, in order, where a reply that was cut was continued."""

    @classmethod
    def joined(cls, parts: Sequence[Generation]) -> Generation:
        """One reply of the calls that sampled it one after the other, each from where the one before was cut."""
        if len(parts) == 1:
            return parts[0]
        starts = [0, *accumulate(len(part.ids) for part in parts)]
        return replace(
            parts[-1],
            ids=[id for part in parts for id in part.ids],
            logprobs=[logprob for part in parts for logprob in part.logprobs],
            spans=[
                VersionSpan(version=span.version, start=start + span.start, end=start + span.end)
                for start, part in zip(starts, parts, strict=False)
                for span in part.spans
            ],
            parts=tuple(parts),
        )

    def calls(self, params: SamplingParams) -> list[EngineCall]:
        """What a turn that was asked for with `params` records of each call: one entry for each of its spans."""
        calls: list[EngineCall] = []
        for part in self.parts or (self,):
            start = calls[-1].end if calls else 0
            calls += [
                EngineCall(
                    start=start + span.start,
                    end=start + span.end,
                    version=span.version,
                    request_id=part.request_id,
                    engine=part.engine,
                    finish_reason=part.finish_reason,
                    sampling=part.sampling or params.to_json(),
                )
                for span in part.spans
            ]
        return calls

    @property
    def num_sampled(self) -> int:
        """Tokens that count against a budget."""
        return len(self.ids) if self.num_tokens is None else self.num_tokens


class InferenceClient(Protocol):
    """One method. Raises `EngineError` for everything that can't be recorded as sampled ids."""

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation: ...
