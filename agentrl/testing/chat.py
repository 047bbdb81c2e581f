"""A chat endpoint that plays a script: the API behind `ctx.chat`, with faults on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, Self

from aiohttp import web

ChatFault = Literal["hang", "garbage", "no_choices", "no_text", "flood", "drop"]
FLOOD_BYTES = 20 * 1024**2
Say = Callable[[list[dict[str, Any]]], str]
"""The messages of a request → the reply's text."""


class ScriptedChat:
    """`async with ScriptedChat(say) as chat:` serves POST {chat.url}/chat/completions on loopback."""

    def __init__(self, say: Say, *, key: str | None = None, faults: list[int | ChatFault] | None = None) -> None:
        """`key`: other keys get 401. `faults`: what the first requests get, one each: an HTTP status, or a fault."""
        self.say = say
        self.key = key
        self.faults = list(faults or [])
        self.seen: list[dict[str, Any]] = []
        """The body of every request, in the order of arrival."""
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(await request.json())
        given = request.headers.get("Authorization", "")
        if self.key is not None and given != f"Bearer {self.key}":
            return _error(401, f"wrong key: {given}")
        if self.faults:
            return await self._fault(request, self.faults.pop(0))
        return _reply(self.say(self.seen[-1]["messages"]))

    async def _fault(self, request: web.Request, fault: int | ChatFault) -> web.StreamResponse:
        if isinstance(fault, int):
            return _error(fault, f"broken on purpose for {request.headers.get('Authorization', 'nobody')}")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
        if fault == "flood":
            return web.Response(body=b" " * FLOOD_BYTES)
        bodies: dict[str, Any] = {"no_choices": {"choices": []}, "no_text": _completion(None)}
        return web.json_response(bodies[fault]) if fault in bodies else web.Response(text="<html>not json")


def _completion(text: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "object": "chat.completion",
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def _reply(text: str) -> web.Response:
    return web.json_response(_completion(text))


def _error(status: int, words: str) -> web.Response:
    return web.json_response({"error": {"message": words}}, status=status, headers={"Retry-After": "0"})
