"""What a request may say. Everything is checked here: a bad request must never reach the generation loop, where one
error ends all requests.

The forms are those of vLLM 0.32 for /inference/v1/generate and /v1/completions; what this engine can't do is refused,
so that no key is silently ignored.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Id = Annotated[int, Field(ge=0)]
_MAX_SEED = 2**63 - 1


class BadRequest(Exception):
    """The request can't be served; `field` is the path of what is wrong with it. HTTP 400."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLimits:
    """What the engine can hold."""

    vocab_size: int
    max_model_len: int
    """Prompt and sampled ids of one request together, at most."""
    eos_ids: frozenset[int]
    """The model's own stop ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """A checked request: it fits the engine, and all its ids are in the vocabulary."""

    request_id: str
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_ids: frozenset[int]
    forced_ids: list[int] | None
    """Decode exactly these, and report their logprobs."""


class _Body(BaseModel):
    """A part of a request: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Sampling(_Body):
    """The sampling parameters that this engine knows."""

    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0.0, le=1e3)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=-1)
    """0 or -1: no limit."""
    seed: int | None = Field(None, ge=0, le=_MAX_SEED)
    """None: one drawn from the system."""
    stop_token_ids: list[Id] | None = None
    ignore_eos: bool = False
    logprobs: Literal[0] | None = None
    """Logprobs of the sampled ids are always given; other candidates' aren't."""
    n: Literal[1] = 1
    stop: None = None
    trace_decode_token_ids: list[Id] | None = Field(None, min_length=1)


class GenerateBody(_Body):
    """POST /inference/v1/generate. `cache_salt` is kept without doing anything: no prefix is shared here."""

    token_ids: list[Id] = Field(min_length=1)
    sampling_params: _Sampling = _Sampling()
    request_id: str | None = Field(None, min_length=1, max_length=256)
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    model: str | None = None
    return_token_ids: bool = False
    output_mode: Literal["tokens"] = "tokens"
    stream: Literal[False] = False


class CompletionBody(_Sampling):
    """POST /v1/completions. The prompt is ids: this engine has no tokenizer."""

    prompt: list[Id] = Field(min_length=1)
    model: str | None = None
    max_tokens: int | None = Field(16, ge=1)
    return_token_ids: bool = False
    request_id: str | None = Field(None, min_length=1, max_length=256)
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    stream: Literal[False] = False


AnyBody = TypeVar("AnyBody", GenerateBody, CompletionBody)


def read_body(form: type[AnyBody], data: Any) -> AnyBody:
    """The body as the form, or BadRequest for the first thing that is wrong."""
    if not isinstance(data, dict):
        raise BadRequest("body", "must be a JSON object")
    try:
        return form.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadRequest(".".join(map(str, first["loc"])), _explain(first["type"], first["msg"])) from None


def _explain(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "is not supported by this engine"
    return message[:1].lower() + message[1:]


def check(body: GenerateBody | CompletionBody, limits: EngineLimits, live: Collection[str]) -> GenerateRequest:
    """The request that the engine runs, or BadRequest. `live`: the ids of the requests that are running."""
    sampling: _Sampling
    if isinstance(body, GenerateBody):
        prompt_ids, prompt_field = body.token_ids, "token_ids"
        sampling, prefix = body.sampling_params, "sampling_params."
    else:
        prompt_ids, prompt_field = body.prompt, "prompt"
        sampling, prefix = body, ""
    _check_ids(prompt_ids, prompt_field, limits)
    _check_sampling(sampling, prefix, limits)
    request_id = body.request_id or f"request-{secrets.token_hex(8)}"
    if request_id in live:
        raise BadRequest("request_id", f"{request_id!r} is in use by a request that is still running")
    return GenerateRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        max_tokens=_max_tokens(sampling, len(prompt_ids), prefix, limits),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        seed=secrets.randbelow(_MAX_SEED) if sampling.seed is None else sampling.seed,
        stop_ids=_stop_ids(sampling, limits),
        forced_ids=sampling.trace_decode_token_ids,
    )


def _check_ids(ids: list[int], field: str, limits: EngineLimits) -> None:
    if max(ids) >= limits.vocab_size:
        raise BadRequest(field, f"id {max(ids)} is outside the vocabulary of {limits.vocab_size}")


def _check_sampling(sampling: _Sampling, prefix: str, limits: EngineLimits) -> None:
    if 0 < sampling.temperature < 1e-3:  # logits / temperature would leave the range of float32
        raise BadRequest(f"{prefix}temperature", "must be 0 (greedy) or at least 0.001")
    if sampling.stop_token_ids:
        _check_ids(sampling.stop_token_ids, f"{prefix}stop_token_ids", limits)
    forced = sampling.trace_decode_token_ids
    if forced is None:
        return
    _check_ids(forced, f"{prefix}trace_decode_token_ids", limits)
    if sampling.top_k > 0 or sampling.top_p < 1:
        raise BadRequest(f"{prefix}trace_decode_token_ids", "can't be combined with top_k or top_p")
    if sampling.max_tokens is not None and sampling.max_tokens != len(forced):
        raise BadRequest(f"{prefix}max_tokens", f"must be left out or {len(forced)}, as trace_decode_token_ids is long")


def _max_tokens(sampling: _Sampling, num_prompt: int, prefix: str, limits: EngineLimits) -> int:
    room = limits.max_model_len - num_prompt
    forced = sampling.trace_decode_token_ids
    wanted = len(forced) if forced is not None else sampling.max_tokens
    if room < 1 or (wanted is not None and wanted > room):
        raise BadRequest(
            f"{prefix}max_tokens",
            f"{num_prompt} prompt ids and {wanted or 1} to sample don't fit max_model_len {limits.max_model_len}",
        )
    return room if wanted is None else wanted


def _stop_ids(sampling: _Sampling, limits: EngineLimits) -> frozenset[int]:
    """A forced sequence runs to its end: its ids were chosen, and a stop id among them is only scored."""
    if sampling.trace_decode_token_ids is not None:
        return frozenset()
    return frozenset(sampling.stop_token_ids or ()) | (frozenset() if sampling.ignore_eos else limits.eos_ids)
