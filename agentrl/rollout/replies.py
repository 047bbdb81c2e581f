"""Checks an engine's reply before it is recorded. What can't be recorded is an error, never repaired (T1, T5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import Generation, VersionSpan
from agentrl.types import Sampler

Json = dict[str, Any]
_FINISH_REASONS = ("stop", "length", "abort")
_SENTINEL = -9999.0
"""What vLLM writes in place of minus infinity: no probability of a sampled id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyReader:
    """Reads the reply to one request."""

    request_id: str
    engine: str
    max_tokens: int
    vocab_size: int | None
    is_generate: bool
    """The reply is in the form of /inference/v1/generate, else of /v1/completions."""
    caller_version: Callable[[], int]
    """The version where the server reports none. Raises EngineError where nobody knows it."""
    fail: Callable[[str, EngineFault], EngineError]
    """Makes an error that says which request it is about."""
    encode_text: Callable[[str], list[int]] | None = None
    """For evaluation: makes ids of the text where the reply holds no others. None: such a reply is an error."""

    def read(self, answer: Json) -> Generation:
        """Raises EngineError for whatever can't be recorded."""
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self.fail("the reply has not exactly one choice", EngineFault.GARBAGE)
        choice = choices[0]
        reason = choice.get("finish_reason")
        if reason not in _FINISH_REASONS:
            raise self.fail(f"finish_reason {reason!r} is none of {_FINISH_REASONS}", EngineFault.GARBAGE)
        encoded = self._encoded_text(choice)
        if encoded is not None:
            ids, logprobs = encoded, [math.nan] * len(encoded)
            spans = [VersionSpan(version=-1, start=0, end=len(encoded))]
        else:
            ids = self._ids(choice)
            logprobs = self._logprobs(choice, ids)
            spans = self._spans(choice, len(ids))
        return Generation(
            request_id=self.request_id,
            engine=self.engine,
            ids=ids,
            logprobs=logprobs,
            spans=spans,
            finish_reason=cast(Literal["stop", "length", "abort"], reason),
            sampler=Sampler.ENGINE if encoded is None else Sampler.TEXT,
        )

    def _encoded_text(self, choice: Json) -> list[int] | None:
        """Ids made of the reply's text, where they may be and there are no others."""
        text = choice.get("text")
        if self.encode_text is None or "token_ids" in choice or not isinstance(text, str):
            return None
        return self.encode_text(text)

    def _ids(self, choice: Json) -> list[int]:
        ids = choice.get("token_ids")
        if not isinstance(ids, list):
            raise self.fail(
                "the reply holds no token_ids although return_token_ids was set: ids can't be recovered from text. "
                "Use a server that supports return_token_ids (vLLM 0.10.2 or later), or the embedded engine",
                EngineFault.NO_IDS,
            )
        bound = self.vocab_size if self.vocab_size is not None else math.inf
        wrong = [i for i in ids if type(i) is not int or not 0 <= i < bound]
        if wrong:
            raise self.fail(f"token_ids holds {wrong[0]!r}, which is not in the vocabulary", EngineFault.NO_IDS)
        if len(ids) > self.max_tokens:
            raise self.fail(f"{len(ids)} ids came where {self.max_tokens} were allowed", EngineFault.NO_IDS)
        return ids

    def _logprobs(self, choice: Json, ids: list[int]) -> list[float]:
        given = choice.get("logprobs") or {}
        if self.is_generate:
            content = given.get("content") or []
            logprobs = [entry.get("logprob") for entry in content]
            same = [entry.get("token_id", i) for entry, i in zip(content, ids, strict=False)] == ids
        else:
            logprobs, same = given.get("token_logprobs") or [], True
        if len(logprobs) != len(ids) or not same:
            raise self.fail(
                f"{len(logprobs)} logprobs came for {len(ids)} ids, or for other ids; they can't be recorded. "
                "The server must honour logprobs=0",
                EngineFault.BAD_LOGPROBS,
            )
        bad = [p for p in logprobs if not isinstance(p, int | float) or not _SENTINEL < p <= 1e-6]
        if bad:
            raise self.fail(_about_logprob(bad[0]), EngineFault.BAD_LOGPROBS)
        return [float(p) for p in logprobs]

    def _spans(self, choice: Json, num_ids: int) -> list[VersionSpan]:
        given = choice.get("weight_versions") if self.is_generate else None
        numbered = isinstance(given, list) and all(str(s.get("version")).isdecimal() for s in given)
        if given and numbered:
            spans = [VersionSpan(version=int(s["version"]), start=s["start"], end=s["end"]) for s in given]
        else:
            version = self.caller_version()
            spans = [VersionSpan(version=version, start=0, end=num_ids)] if num_ids else []
        ends = [0, *(span.end for span in spans)]
        if [span.start for span in spans] != ends[:-1] or ends[-1] != num_ids:
            raise self.fail(f"weight_versions {given} don't cover {num_ids} ids without gaps", EngineFault.NO_IDS)
        return spans


def _about_logprob(value: object) -> str:
    if value == _SENTINEL:
        return f"logprob {value!r} is the server's stand-in for minus infinity, which no sampled id can have"
    return (
        f"logprob {value!r} is not a finite number ≤ 0: the weights hold NaN, or the server reports logits. "
        "Start vLLM with --logprobs-mode processed_logprobs"
    )
