"""An engine that plays a script: the same request and response form as a real one, with faults on demand.

Use it where time or faults must be under control; everything else is tested on the real engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import web

Fault = Literal["500", "no_ids", "no_logprobs", "nan", "short_logprobs", "garbage"]


@dataclass(kw_only=True, slots=True)
class Reply:
    """What the script says to one request; all of it is sent, whatever was asked for."""

    ids: list[int]
    logprobs: list[float] | None = None
    """None: -0.5 for each id."""
    version: int = 0
    finish_reason: Literal["stop", "length"] = "stop"


@dataclass(kw_only=True, slots=True)
class SeenRequest:
    """A request as it arrived."""

    request_id: str
    token_ids: list[int]
    sampling: dict[str, Any]
    reply: Reply = field(default_factory=lambda: Reply(ids=[]))


Script = Callable[[SeenRequest], Reply]


class ScriptedEndpoint:
    """`async with ScriptedEndpoint(script) as endpoint:` serves at `endpoint.url` on loopback."""

    def __init__(self, script: Script, *, max_model_len: int = 4096, fault: Fault | None = None) -> None:
        """`fault`: how every reply is wrong."""
        self.script = script
        self.max_model_len = max_model_len
        self.fault = fault
        self.seen: list[SeenRequest] = []
        """Every request of a rollout in the order of arrival, with the reply that was sent."""
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/health", _health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/inference/v1/generate", self._generate)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "scripted", "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body.get("token_ids"):
            return web.json_response({"error": {"message": "token_ids: must be a list of ids"}}, status=400)
        if self.fault == "500":
            return web.json_response({"error": {"message": "broken on purpose"}}, status=500)
        if self.fault == "garbage":
            return web.Response(text="<html>not json")
        seen = SeenRequest(
            request_id=str(body.get("request_id", "")), token_ids=body["token_ids"], sampling=body["sampling_params"]
        )
        seen.reply = self.script(seen)
        if not seen.request_id.startswith("start"):
            self.seen.append(seen)
        return web.json_response(_body(seen, self.fault))


async def _health(request: web.Request) -> web.Response:
    return web.json_response({})


def _body(seen: SeenRequest, fault: Fault | None) -> dict[str, Any]:
    reply = seen.reply
    logprobs = list(reply.logprobs if reply.logprobs is not None else [-0.5] * len(reply.ids))
    if fault == "short_logprobs":
        logprobs = logprobs[:-1]
    if fault == "nan":
        logprobs[0] = float("nan")
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": reply.finish_reason,
        "token_ids": reply.ids,
        "logprobs": {"content": [{"token_id": i, "logprob": p} for i, p in zip(reply.ids, logprobs, strict=False)]},
        "weight_versions": [{"version": str(reply.version), "start": 0, "end": len(reply.ids)}],
    }
    if fault == "no_ids":
        del choice["token_ids"]
    if fault == "no_logprobs":
        choice["logprobs"] = None
    return {"request_id": seen.request_id, "model": "scripted", "choices": [choice]}
