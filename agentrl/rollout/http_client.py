"""InferenceClient over HTTP: a vLLM server or the embedded engine, by ids.

Preferred is /inference/v1/generate, which says which weights sampled each id; without it /v1/completions with
`return_token_ids`, whose ids get the version that the caller names. Every reply is checked before it is recorded.
Nothing is repeated here: whether a failed call is tried again is the loop's budget (R3).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self, cast

import httpx
from httpx_aiohttp import AiohttpTransport

from agentrl.errors import EngineError
from agentrl.rollout.client import Generation, SamplingParams, VersionSpan

_GENERATE = "/inference/v1/generate"
_COMPLETIONS = "/v1/completions"
_CONNECT_TIMEOUT_S = 30.0
_FINISH_REASONS = ("stop", "length", "abort")


class ReplyGate:
    """Holds replies back while weights change (V2). One gate may serve several clients; use it in one event loop."""

    def __init__(self) -> None:
        self._num_holds = 0
        self._failure: str | None = None
        self._open = asyncio.Event()
        self._open.set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Replies that arrive inside wait for the end of it. After an error inside, all replies fail until a later
        hold ends well: the weights behind them are not proved."""
        self._num_holds += 1
        self._open.clear()
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
        gate: ReplyGate | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.name = name or self.url
        """This engine's name in records."""
        self.max_model_len: int | None = None
        """The context window, known after open()."""
        self.vocab_size: int | None = None
        """Ids at or past it are refused in replies; None: not known."""
        self._model = model
        self._version = version
        self._timeout_s = request_timeout_s
        self._gate = gate or ReplyGate()
        self._path = _GENERATE
        self._http = httpx.AsyncClient(
            # 0 is aiohttp's "no limit"; its default of 100 connections would queue rollouts here, unseen.
            transport=AiohttpTransport(limits=httpx.Limits(max_connections=0, keepalive_expiry=15.0), trust_env=False),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(request_timeout_s, connect=_CONNECT_TIMEOUT_S, pool=None),
            trust_env=False,
        )

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
        answer = await self._request("GET", "/v1/models", None, "start")
        cards = answer.get("data")
        if not isinstance(cards, list) or not cards:
            raise self._error("/v1/models", "start", "lists no model; is this an OpenAI-compatible server?")
        card = next((card for card in cards if card.get("id") == self._model), None if self._model else cards[0])
        if card is None:
            served = ", ".join(str(card.get("id")) for card in cards)
            raise self._error("/v1/models", "start", f"does not serve {self._model!r} but {served}: fix the model name")
        self._model, self.max_model_len = str(card["id"]), card.get("max_model_len")
        # An empty body is refused where the endpoint exists (400, 422), and costs no token.
        status = (await self._send("POST", _GENERATE, {}, "start")).status_code
        self._path = _COMPLETIONS if status in (403, 404, 405, 501) else _GENERATE

    async def check(self) -> None:
        """The start gate: window known, and a one-token probe returns an id, its logprob and its version.

        Raises EngineError, which says what is missing, where, and what to do.
        """
        if not self.max_model_len:
            raise self._error("/v1/models", "start", "gives no max_model_len: set limits.max_context_tokens instead")
        probe = SamplingParams(max_tokens=1, temperature=1.0, seed=0)
        generation = await self.generate([0], probe, "start-check")
        if len(generation.ids) != 1:
            raise self._error(self._path, "start-check", f"sampled {len(generation.ids)} ids where 1 was asked for")

    async def close(self) -> None:
        """Close all connections. May be called more than once."""
        await self._http.aclose()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """See ReplyGate.hold."""
        with self._gate.hold():
            yield

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        """See InferenceClient. A cancelled call closes its connection, at which the server drops the request."""
        version_before = self._named_version()
        body = self._body(ids, sampling, request_id)
        answer = await self._request("POST", self._path, body, request_id)
        failure = await self._gate.passed()
        if failure is not None:
            raise self._error(self._path, request_id, f"its reply comes from weights that were not proved: {failure}")
        return self._read(answer, sampling, request_id, version_before)

    def _body(self, ids: list[int], sampling: SamplingParams, request_id: str) -> dict[str, Any]:
        parameters = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,  # the sampled id's own, and no other candidate's
        }
        common = {"model": self._model, "request_id": request_id, "return_token_ids": True}
        if self._path == _GENERATE:
            return {"token_ids": ids, "sampling_params": parameters, **common}
        return {"prompt": ids, **parameters, **common}

    # ------------------------------------------------------------------------------------------ checking a reply

    def _read(
        self, answer: dict[str, Any], sampling: SamplingParams, request_id: str, version_before: int | None
    ) -> Generation:
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._error(self._path, request_id, "the reply has not exactly one choice")
        choice = choices[0]
        ids = self._read_ids(choice, sampling, request_id)
        logprobs = self._read_logprobs(choice, ids, request_id)
        spans = self._read_spans(choice, len(ids), request_id, version_before)
        reason = choice.get("finish_reason")
        if reason not in _FINISH_REASONS:
            raise self._error(self._path, request_id, f"finish_reason {reason!r} is none of {_FINISH_REASONS}")
        return Generation(
            request_id=request_id,
            engine=self.name,
            ids=ids,
            logprobs=logprobs,
            spans=spans,
            finish_reason=cast(Literal["stop", "length", "abort"], reason),
        )

    def _read_ids(self, choice: dict[str, Any], sampling: SamplingParams, request_id: str) -> list[int]:
        ids = choice.get("token_ids")
        if not isinstance(ids, list):
            raise self._error(
                self._path,
                request_id,
                "the reply holds no token_ids although return_token_ids was set: ids can't be recovered from text. "
                "Use a server that supports return_token_ids (vLLM 0.10.2 or later), or the embedded engine",
            )
        bound = self.vocab_size if self.vocab_size is not None else math.inf
        wrong = [i for i in ids if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < bound]
        if wrong:
            raise self._error(self._path, request_id, f"token_ids holds {wrong[0]!r}, which is not in the vocabulary")
        if len(ids) > sampling.max_tokens:
            raise self._error(self._path, request_id, f"{len(ids)} ids came where {sampling.max_tokens} were allowed")
        return ids

    def _read_logprobs(self, choice: dict[str, Any], ids: list[int], request_id: str) -> list[float]:
        given = choice.get("logprobs") or {}
        if self._path == _GENERATE:
            content = given.get("content") or []
            logprobs = [entry.get("logprob") for entry in content]
            same = [entry.get("token_id", i) for entry, i in zip(content, ids, strict=False)] == ids
        else:
            logprobs, same = given.get("token_logprobs") or [], True
        if len(logprobs) != len(ids) or not same:
            raise self._error(
                self._path, request_id, f"{len(logprobs)} logprobs came for {len(ids)} ids, or for other ids; "
                "they can't be recorded. The server must honour logprobs=0"
            )  # fmt: skip
        bad = [p for p in logprobs if not isinstance(p, int | float) or not -math.inf < p <= 1e-6]
        if bad:
            raise self._error(
                self._path, request_id, f"logprob {bad[0]!r} is not a finite number ≤ 0: the weights hold NaN, or "
                "the server reports logits. Start vLLM with --logprobs-mode processed_logprobs"
            )  # fmt: skip
        return [float(p) for p in logprobs]

    def _read_spans(
        self, choice: dict[str, Any], num_ids: int, request_id: str, version_before: int | None
    ) -> list[VersionSpan]:
        given = choice.get("weight_versions") if self._path == _GENERATE else None
        numbered = isinstance(given, list) and all(str(s.get("version")).isdecimal() for s in given)
        if given and numbered:
            spans = [VersionSpan(version=int(s["version"]), start=s["start"], end=s["end"]) for s in given]
        else:
            spans = self._spans_by_caller(num_ids, request_id, version_before)
        ends = [0, *(span.end for span in spans)]
        if [span.start for span in spans] != ends[:-1] or ends[-1] != num_ids:
            raise self._error(self._path, request_id, f"weight_versions {given} don't cover {num_ids} ids without gaps")
        return spans

    def _spans_by_caller(self, num_ids: int, request_id: str, version_before: int | None) -> list[VersionSpan]:
        version = self._named_version()
        if version is None:
            raise self._error(
                self._path,
                request_id,
                "the server does not say which weights sampled the ids: give the client a version, or start vLLM with "
                "--enable-scale-out and set its weight version to a number",
            )
        if version != version_before:
            raise self._error(
                self._path, request_id, f"weights changed from version {version_before} to {version} while it ran, and "
                f"{self._path} can't say which ids came from which"
            )  # fmt: skip
        return [VersionSpan(version=version, start=0, end=num_ids)] if num_ids else []

    def _named_version(self) -> int | None:
        return self._version() if callable(self._version) else self._version

    # ---------------------------------------------------------------------------------------------------- HTTP

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, request_id: str) -> httpx.Response:
        try:
            return await self._http.request(method, self.url + path, json=body)
        except (httpx.HTTPError, OSError) as error:
            # The aiohttp transport reports a refused or broken connection as ConnectTimeout.
            if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
                what = f"no answer within {self._timeout_s:g} s (engine.request_timeout_s)"
            else:
                what = f"the connection failed ({error}): is the engine running?"
            raise self._error(path, request_id, what) from error

    async def _request(self, method: str, path: str, body: dict[str, Any] | None, request_id: str) -> dict[str, Any]:
        response = await self._send(method, path, body, request_id)
        if response.status_code == 401:
            raise self._error(path, request_id, "HTTP 401: the key is wrong or missing; set engine.key")
        if response.status_code != 200:
            raise self._error(path, request_id, f"HTTP {response.status_code}: {_message(response)}")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._error(path, request_id, f"the reply is no JSON object: {response.text[:200]!r}")
        return answer

    def _error(self, path: str, request_id: str, what: str) -> EngineError:
        return EngineError(f"request {request_id!r} to {self.url}{path}: {what}")


def _message(response: httpx.Response) -> str:
    """The server's own words."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
