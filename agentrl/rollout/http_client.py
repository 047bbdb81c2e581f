"""InferenceClient over HTTP: a vLLM server or the embedded engine, by ids.

Preferred is /inference/v1/generate, which says which weights sampled each id; without it /v1/completions with
`return_token_ids`, whose ids get the version that the caller names. Every reply is checked before it is recorded.
A generation whose fault is transient is tried again; each try has a request id of its own, so that a reply that was
lost on the way is no second sample: the turn is recorded once, with the id of the try that arrived.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.replies import ReplyReader
from agentrl.rollout.retry import RetryPolicy, repeat
from agentrl.rollout.transport import Transport
from agentrl.types import Sampler

LOGGER = logging.getLogger(__name__)
_GENERATE = "/inference/v1/generate"
_COMPLETIONS = "/v1/completions"
_TOKENIZE = "/tokenize"
_ABORT = "/inference/v1/abort_requests"
_METRICS = "/metrics"
_NOT_OFFERED = (403, 404, 405, 501)
"""Statuses of a path that the server doesn't have, or has switched off."""
ABORT_TIMEOUT_S = 2.0
_SAMPLE = "The quick brown fox: 3.14 × 2 = 6,28\n\tdef f(x):  return x  # naïve 日本語 🙂"


class ReplyGate:
    """Holds replies back while weights change (V2). One gate may serve several clients; use it in one event loop."""

    def __init__(self) -> None:
        self.salt = ""
        """Of the engine's prefix cache: another with each hold, so that no request that is sent after it can be served
        from what older weights have cached, not even where the engine's own reset does nothing (I01)."""
        self._num_holds = 0
        self._renew_salt()
        self._failure: str | None = None
        self._open = asyncio.Event()
        self._open.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Replies that arrive inside wait for the end of it. After an error inside, all replies fail until a later
        hold ends well: the weights behind them are not proved."""
        self._num_holds += 1
        self._open.clear()
        self._renew_salt()
        failure = None
        try:
            yield
        except BaseException as error:
            failure = str(error) or repr(error)
            raise
        finally:
            self._num_holds -= 1
            self._failure = failure
            if self._num_holds == 0:
                self._open.set()

    def _renew_salt(self) -> None:
        self.salt = secrets.token_hex(8)

    async def passed(self) -> str | None:
        """Wait until nothing holds; None, or why replies must not be used."""
        while not self._open.is_set():
            await self._open.wait()
        return self._failure


class HttpClient:
    """One engine at `url`. Open it with `await client.open()` or `async with`, then `check()` it once.

    `version` is that of the weights behind a server which doesn't report any: a number, or a callable for it.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str | None = None,
        name: str | None = None,
        version: int | Callable[[], int] | None = None,
        request_timeout_s: float = 120.0,
        connect_timeout_s: float = 60.0,
        retry: RetryPolicy | None = None,
        gate: ReplyGate | None = None,
        encode_text: Callable[[str], list[int]] | None = None,
    ) -> None:
        """`encode_text`: for evaluation only, makes ids of the text where the server gives no ids."""
        self._http = Transport(url, key=key, request_timeout_s=request_timeout_s, connect_timeout_s=connect_timeout_s)
        self.url = self._http.url
        self.name = name or self.url
        """This engine's name in records."""
        self.max_model_len: int | None = None
        """The context window, known after open()."""
        self.vocab_size: int | None = None
        """Ids at or past it are refused in replies; None: not known."""
        self.faults: Counter[EngineFault] = Counter()
        """Failed tries by kind, also those that a later try made good."""
        self._model = model
        self._version = version
        self._retry = retry or RetryPolicy()
        self.gate = gate or ReplyGate()
        """Where replies wait while weights change."""
        self._encode_text = encode_text
        self._path = _GENERATE
        self._can_abort = True
        """Until the server says that it can't."""

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Find the served model, its window, and which endpoint answers. Raises EngineError."""
        answer = await self._http.ask("GET", "/v1/models", None, "start")
        cards = answer.get("data")
        if not isinstance(cards, list) or not cards:
            raise self._refused("/v1/models", "start", "lists no model; is this an OpenAI-compatible server?")
        card = next((card for card in cards if card.get("id") == self._model), None if self._model else cards[0])
        if card is None:
            served = ", ".join(str(card.get("id")) for card in cards)
            raise self._refused(
                "/v1/models", "start", f"does not serve {self._model!r} but {served}: fix the model name"
            )
        self._model, self.max_model_len = str(card["id"]), card.get("max_model_len")
        # An empty body is refused where the endpoint exists (400, 422), and costs no token.
        status = (await self._http.request("POST", _GENERATE, {}, "start")).status
        self._path = _COMPLETIONS if status in _NOT_OFFERED else _GENERATE

    async def check(self) -> None:
        """The start gate: window known, and a one-token probe returns an id, its logprob and its version.

        Raises EngineError, which says what is missing, where, and what to do. For evaluation text is enough.
        """
        if not self.max_model_len:
            raise self._refused("/v1/models", "start", "gives no max_model_len: set limits.max_context_tokens instead")
        probe = SamplingParams(max_tokens=1, temperature=1.0, seed=0)
        generation = await self.generate([0], probe, "start-check")
        if generation.sampler is Sampler.TEXT:
            LOGGER.warning(
                "%s gives text and no ids: what it samples is evaluated, but can't be trained on (for ids: vLLM 0.10.2 "
                "or later, or the embedded engine)",
                self.url,
            )
        elif len(generation.ids) != 1:
            raise self._refused(self._path, "start-check", f"sampled {len(generation.ids)} ids where 1 was asked for")

    async def check_vocabulary(self, encode: Callable[[str], list[int]], control_strings: Sequence[str]) -> None:
        """Compare the server's tokenizer with ours, by the control strings and some text; `encode` is ours.

        A server without /tokenize passes. Raises EngineError, which names a text that the two read differently.
        """
        everything = " ".join([*control_strings, _SAMPLE])
        if await self.tokenized(prompt=everything) in (None, encode(everything)):
            return
        for text in [*control_strings, _SAMPLE, everything]:
            theirs, ours = await self.tokenized(prompt=text), encode(text)
            if theirs != ours:
                what = (
                    f"reads {text[:100]!r} as {theirs}, where the tokenizer of model.path gives {ours}: another model "
                )
                raise self._refused(_TOKENIZE, "start", what + "or revision is served; serve the one of model.path")

    async def tokenized(self, **text: Any) -> list[int] | None:
        """The server's ids of a text (prompt=…) or a conversation (messages=…); None where it doesn't tell, or in
        another form than vLLM's."""
        body = {"model": self._model, "add_special_tokens": False, **text}
        response = await self._http.request("POST", _TOKENIZE, body, "start")
        try:
            ids = json.loads(response.body)["tokens"] if response.status == 200 else None
        except (ValueError, KeyError, TypeError):
            return None
        return ids if ids and all(type(id) is int for id in ids) else None

    async def close(self) -> None:
        """Close all connections. May be called more than once."""
        await self._http.close()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """See ReplyGate.hold."""
        with self.gate.hold():
            yield

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        """See InferenceClient. Raises ContextOverflow where the server says that the request doesn't fit.

        A cancelled call closes its connection, at which the server drops the request.
        """

        async def attempt(number: int) -> Generation:
            return await self.generate_once(ids, sampling, f"{request_id}-try{number}" if number else request_id)

        return await repeat(attempt, self._retry, self._count)

    async def generate_once(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        """One try of `generate`."""
        await self._pass_gate(request_id)  # what is sent while weights change could mix old and new under one salt
        version_before = self._named_version()
        body = self._body(ids, sampling) | {"request_id": request_id, "cache_salt": self.gate.salt}
        try:
            answer = await self._http.ask("POST", self._path, body, request_id)
        except EngineError as error:
            if error.kind in (EngineFault.CONNECTION, EngineFault.TIMEOUT):
                await self._abort(request_id)
            raise
        version_after = self._named_version()  # before the gate: what arrives ahead of new weights is of the old ones
        await self._pass_gate(request_id)
        reader = ReplyReader(
            request_id=request_id,
            engine=self.name,
            max_tokens=sampling.max_tokens,
            vocab_size=self.vocab_size,
            is_generate=self._path == _GENERATE,
            caller_version=lambda: self._caller_version(version_before, version_after, request_id),
            fail=lambda what, kind: self._error(request_id, what, kind),
            encode_text=self._encode_text,
        )
        return reader.read(answer)

    async def _pass_gate(self, request_id: str) -> None:
        failure = await self.gate.passed()
        if failure is not None:
            what = f"the engine's weights were not proved: {failure}"
            raise self._error(request_id, what, EngineFault.UNPROVED)

    async def _abort(self, request_id: str) -> None:
        """Have the server drop a request whose reply won't arrive, where it offers that: nobody waits for it.

        It notices by itself where the connection was cut, but not through a proxy that keeps its own.
        """
        if not self._can_abort:
            return
        named = f"generate-tokens-{request_id}" if self._path == _GENERATE else f"cmpl-{request_id}-0"
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                response = await self._http.request("POST", _ABORT, {"request_ids": [named]}, request_id)
            self._can_abort = response.status not in _NOT_OFFERED

    async def metrics(self) -> str | None:
        """The server's figures in Prometheus' text form; None where it offers none. Raises EngineError."""
        response = await self._http.request("GET", _METRICS, None, "metrics")
        return response.body.decode("utf-8", "replace") if response.status == 200 else None

    def _count(self, error: EngineError) -> None:
        self.faults[error.kind] += 1

    def _body(self, ids: list[int], sampling: SamplingParams) -> dict[str, Any]:
        parameters = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,  # the sampled id's own, and no other candidate's
        }
        common = {"model": self._model, "return_token_ids": True}
        if self._path == _GENERATE:
            return {"token_ids": ids, "sampling_params": parameters, **common}
        # What isn't said here is filled in from the model's generation config.
        neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
        return {"prompt": ids, **parameters, **neutral, **common}

    def _caller_version(self, before: int | None, after: int | None, request_id: str) -> int:
        if after is None:
            what = (
                "the server does not say which weights sampled the ids: give the client a version, or start vLLM with "
                "--enable-scale-out and set its weight version to a number"
            )
            raise self._error(request_id, what, EngineFault.NO_IDS)
        if after != before:
            what = (
                f"weights changed from version {before} to {after} while it ran, and {self._path} can't say which ids "
                "came from which"
            )
            raise self._error(request_id, what, EngineFault.MIXED)
        return after

    def _named_version(self) -> int | None:
        return self._version() if callable(self._version) else self._version

    def _error(self, request_id: str, what: str, kind: EngineFault) -> EngineError:
        return self._http.error(self._path, request_id, what, kind)

    def _refused(self, path: str, request_id: str, what: str) -> EngineError:
        return self._http.error(path, request_id, what, EngineFault.REFUSED)
