"""The engine's HTTP server, in the forms of vLLM 0.32: loopback only, a random port, a random key.

It runs in a thread with an event loop of its own, so that a busy caller's loop doesn't delay replies. Requests are
checked here, in full; only checked ones reach the generation loop. A client that goes away cancels its request.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from agentrl.engine.base import GenerationLoop
from agentrl.engine.reply import EngineFault, EngineUnavailable, Reply
from agentrl.engine.requests import BadRequest, CompletionBody, EngineLimits, GenerateBody, check, read_body

_MAX_BODY_BYTES = 64 * 2**20
_BACKLOG = 4096
"""Connections that may wait for acceptance: thousands of rollouts start at once."""
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EngineServer:
    """Serves one generation loop under `url`; every path but /health asks for `key` as a bearer token."""

    def __init__(self, loop: GenerationLoop, limits: EngineLimits, name: str) -> None:
        self.key = secrets.token_urlsafe(32)
        self._generation = loop
        self._limits = limits
        self._name = name
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._started = threading.Event()
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="agentrl-engine-http", daemon=True)

    def start(self) -> None:
        """Return once connections are accepted."""
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise EngineUnavailable(f"the HTTP server at {self.url} did not start within {_START_TIMEOUT_S:.0f} s")

    def stop(self) -> None:
        """Close the port and end the thread. May be called more than once."""
        if self._event_loop is not None and self._stop is not None and self._thread.is_alive():
            self._event_loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_TIMEOUT_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            del self._generation  # aiohttp keeps a thousand handlers of late, and with them this server: but no model

    async def _serve(self) -> None:
        self._event_loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/inference/v1/generate", self._generate)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        await web.SockSite(runner, self._socket, backlog=_BACKLOG).start()
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Asks for the key, and turns every failure into a JSON error."""
        expected = f"Bearer {self.key}".encode()
        given = request.headers.get("Authorization", "").encode()
        if request.path != "/health" and not hmac.compare_digest(given, expected):
            return _error(401, "the Authorization header must be 'Bearer <key of the engine>'", "Authorization")
        try:
            return await handler(request)
        except BadRequest as error:
            return _error(400, str(error), error.field)
        except EngineUnavailable as error:
            return _error(503, str(error))
        except EngineFault as error:
            return _error(500, str(error))
        except web.HTTPException as error:
            return _error(error.status, f"{request.method} {request.path}: {error.reason}")

    async def _health(self, request: web.Request) -> web.Response:
        reason = self._generation.health()
        return web.json_response({"status": "ok"}) if reason is None else _error(503, reason)

    async def _models(self, request: web.Request) -> web.Response:
        card = {
            "id": self._name,
            "object": "model",
            "owned_by": "agentrl",
            "max_model_len": self._limits.max_model_len,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = read_body(GenerateBody, await _json(request))
        reply = await self._run_request(body)
        content = [
            {"token_id": token, "logprob": logprob} for token, logprob in zip(reply.ids, reply.logprobs, strict=True)
        ]
        choice = {
            **_choice(reply),
            "token_ids": reply.ids,
            "logprobs": {"content": content},
            "weight_versions": [{"version": str(v), "start": s, "end": e} for v, s, e in reply.version_spans()],
        }
        return web.json_response({**self._envelope(reply), "output_mode": "tokens", "choices": [choice]})

    async def _completions(self, request: web.Request) -> web.Response:
        body = read_body(CompletionBody, await _json(request))
        reply = await self._run_request(body)
        choice: dict[str, Any] = {**_choice(reply), "text": ""}
        if body.logprobs is not None:
            names = [f"token_id:{token}" for token in reply.ids]
            choice["logprobs"] = {"tokens": names, "token_logprobs": reply.logprobs}
        if body.return_token_ids:
            choice |= {"token_ids": reply.ids, "prompt_token_ids": reply.request.prompt_ids}
        envelope = {"object": "text_completion", "created": int(time.time()), **self._envelope(reply)}
        return web.json_response({**envelope, "id": reply.request.request_id, "choices": [choice]})

    async def _run_request(self, body: GenerateBody | CompletionBody) -> Reply:
        if body.model is not None and body.model != self._name:
            raise BadRequest("model", f"{body.model!r} is not served here; {self._name!r} is")
        reply = self._generation.submit(check(body, self._limits, self._generation.live_ids))
        try:
            return await asyncio.wrap_future(reply.done)
        except asyncio.CancelledError:
            self._generation.cancel(reply)
            raise

    def _envelope(self, reply: Reply) -> dict[str, Any]:
        num_prompt, num_sampled = len(reply.request.prompt_ids), len(reply.ids)
        usage = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_sampled,
            "total_tokens": num_prompt + num_sampled,
        }
        return {"request_id": reply.request.request_id, "model": self._name, "usage": usage}


def _choice(reply: Reply) -> dict[str, Any]:
    stop_reason = reply.ids[-1] if reply.finish_reason == "stop" else None
    return {"index": 0, "finish_reason": reply.finish_reason, "stop_reason": stop_reason}


def _error(status: int, message: str, field: str | None = None) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "engine_error"
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": field, "code": status}}, status=status
    )


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest("body", f"is not JSON ({error})") from None
