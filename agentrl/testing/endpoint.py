"""An engine that plays a script: the same request and response form as a real one, with faults on demand.

Use it where time or faults must be under control; everything else is tested on the real engine. In a process of its
own, where a benchmark needs it out of the way, it plays replies by turn (see `--help`)::

    python -m agentrl.testing.endpoint --replies '[[7, 8, 2], [9, 2]]' --fault-share 0.2

It prints one JSON line, {"url": ..., "key": ...}, and serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import re
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import web

from agentrl.testing.endpoint_faults import (
    FAULTS,
    Fault,
    FaultPlan,
    Plan,
    always,
    error,
    fail_after_work,
    fail_before_work,
)

__all__ = ["FAULTS", "Fault", "FaultPlan", "Reply", "Script", "ScriptedEndpoint", "SeenRequest", "by_turn"]
_TURN = re.compile(r"-(\d+)(?:-call\d+)?(?:-try\d+)?$")
"""A rollout's request id ends in the index of its turn, and in the numbers of a further call and try."""


@dataclass(kw_only=True, slots=True)
class Reply:
    """What the script says to one request; all of it is sent, whatever was asked for."""

    ids: list[int]
    logprobs: list[float] | None = None
    """None: -0.5 for each id."""
    version: int = 0
    finish_reason: Literal["stop", "length", "abort"] = "stop"


@dataclass(kw_only=True, slots=True)
class SeenRequest:
    """A request as it arrived."""

    request_id: str
    token_ids: list[int]
    sampling: dict[str, Any]
    reply: Reply = field(default_factory=lambda: Reply(ids=[]))

    @property
    def turn(self) -> int:
        """The index of the turn that is sampled; 0 where the request id doesn't say."""
        found = _TURN.search(self.request_id)
        return int(found[1]) if found else 0


Script = Callable[[SeenRequest], Reply]


def by_turn(replies: list[list[int]]) -> Script:
    """Say replies[turn], the last one for all later turns."""
    return lambda seen: Reply(ids=replies[min(seen.turn, len(replies) - 1)])


class ScriptedEndpoint:
    """`async with ScriptedEndpoint(script) as endpoint:` serves at `endpoint.url` on loopback."""

    def __init__(
        self,
        script: Script,
        *,
        max_model_len: int = 4096,
        fault: Fault | Plan | None = None,
        key: str | None = None,
        port: int = 0,
        accept_every_s: float = 0.0,
        backlog: int = 4096,
        keep_seen: bool = True,
        only_text: Callable[[list[int]], str] | None = None,
        tokenize: Callable[[str], list[int]] | None = None,
    ) -> None:
        """`fault`: how every reply is wrong, or a plan. `key` None: anyone may ask.

        `tokenize`: what /tokenize answers; None: there is none. `only_text`: be a server that knows nothing of ids:
        /v1/completions alone, answering the text of the ids.

        `accept_every_s` > 0: connections are accepted one by one, no faster than this; `backlog` of them may wait.
        `keep_seen` False: a long benchmark doesn't fill the memory.
        """
        self.script = script
        self.max_model_len = max_model_len
        self.key = key
        self.seen: list[SeenRequest] = []
        """Every request of a rollout whose work was done, in order, with the reply that was sent (or lost)."""
        self.aborted: list[str] = []
        """What clients asked to drop, by the names that vLLM gives to requests."""
        self.url = ""
        self._plan: Plan = fault if callable(fault) else always(fault)
        self._accept_every_s = accept_every_s
        self._backlog = backlog
        self._keep_seen = keep_seen
        self._only_text = only_text
        self._tokenize = tokenize
        self._port = port
        self._runner: web.AppRunner | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.come_up()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.go_down()

    async def come_up(self) -> None:
        """Listen; after `go_down`, at the same URL as before."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/health", _health)
        app.router.add_get("/v1/models", self._models)
        if self._tokenize is not None:
            app.router.add_post("/tokenize", self._tokens)
        if self._only_text is None:
            app.router.add_post("/inference/v1/generate", self._generate)
            app.router.add_post("/inference/v1/abort_requests", self._abort)
        else:
            app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        if self._accept_every_s > 0:
            listener.listen(self._backlog)
            listener.setblocking(False)
            self._accepting = asyncio.create_task(self._accept_slowly(listener))
        else:
            await web.SockSite(self._runner, listener, backlog=self._backlog).start()

    async def go_down(self) -> None:
        """Cut every connection and refuse new ones."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _accept_slowly(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        assert self._runner is not None and self._runner.server is not None
        with listener:
            while True:
                connection, _ = await loop.sock_accept(listener)
                await loop.connect_accepted_socket(self._runner.server, connection)
                await asyncio.sleep(self._accept_every_s)

    async def _models(self, request: web.Request) -> web.Response:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        card = {"id": "scripted", "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _generate(self, request: web.Request) -> web.Response:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        body = await request.json()
        if not body.get("token_ids"):
            return error(400, "token_ids: must be a list of ids")
        fault = self._plan()
        if (failed := await fail_before_work(fault, request)) is not None:
            return failed
        seen = SeenRequest(
            request_id=str(body.get("request_id", "")), token_ids=body["token_ids"], sampling=body["sampling_params"]
        )
        seen.reply = self.script(seen)
        if self._keep_seen and not seen.request_id.startswith("start"):
            self.seen.append(seen)
        return fail_after_work(fault, request, _answer(seen))

    async def _abort(self, request: web.Request) -> web.Response:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        self.aborted += (await request.json())["request_ids"]
        return web.Response()

    async def _tokens(self, request: web.Request) -> web.Response:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        assert self._tokenize is not None
        return web.json_response({"tokens": self._tokenize((await request.json())["prompt"])})

    async def _complete(self, request: web.Request) -> web.Response:
        if (refusal := self._refuse(request)) is not None:
            return refusal
        body = await request.json()
        seen = SeenRequest(request_id=str(body.get("request_id", "")), token_ids=body["prompt"], sampling=body)
        seen.reply = self.script(seen)
        if self._keep_seen and not seen.request_id.startswith("start"):
            self.seen.append(seen)
        assert self._only_text is not None
        text, reason = self._only_text(seen.reply.ids), seen.reply.finish_reason
        return web.json_response({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})

    def _refuse(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if self.key is None or hmac.compare_digest(given.encode(), f"Bearer {self.key}".encode()):
            return None
        return error(401, "the Authorization header must be 'Bearer <key of the endpoint>'")


async def _health(request: web.Request) -> web.Response:
    return web.json_response({})


def _answer(seen: SeenRequest) -> dict[str, Any]:
    reply = seen.reply
    logprobs = reply.logprobs if reply.logprobs is not None else [-0.5] * len(reply.ids)
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": reply.finish_reason,
        "token_ids": reply.ids,
        "logprobs": {"content": [{"token_id": i, "logprob": p} for i, p in zip(reply.ids, logprobs, strict=True)]},
        "weight_versions": [{"version": str(reply.version), "start": 0, "end": len(reply.ids)}],
    }
    return {"request_id": seen.request_id, "model": "scripted", "choices": [choice]}


async def _serve(options: argparse.Namespace) -> None:
    plan = FaultPlan(options.fault_share, options.faults.split(",") if options.faults else FAULTS, options.seed)
    endpoint = ScriptedEndpoint(
        by_turn(json.loads(options.replies)),
        max_model_len=options.max_model_len,
        fault=plan,
        key=secrets.token_urlsafe(24),
        port=options.port,
        accept_every_s=options.accept_every_s,
        keep_seen=False,
    )
    async with endpoint:
        print(json.dumps({"url": endpoint.url, "key": endpoint.key}), flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever started it is gone


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted engine in a process of its own.")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--replies", default="[[1]]", help="JSON: the ids to say at each turn; the last repeats")
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--fault-share", type=float, default=0.0)
    parser.add_argument("--faults", default="", help=f"comma-separated, of: {', '.join(FAULTS)}")
    parser.add_argument("--accept-every-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
