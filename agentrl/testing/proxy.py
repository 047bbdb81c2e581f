"""A proxy that fails on purpose, in front of a real engine.

Faults are those of `agentrl.testing.endpoint_faults`; they hit requests to generate, and nothing else. It keeps its
connection to the engine when a client goes away, as many proxies do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Self

import aiohttp
from aiohttp import web

from agentrl.testing.endpoint_faults import Fault, Plan, always, cut, error, fail_after_work, fail_before_work

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
_KEPT = ("Authorization", "Content-Type", "Retry-After")


class FaultyProxy:
    """`async with FaultyProxy(engine.url) as proxy:` serves at `proxy.url` on loopback."""

    def __init__(self, target: str, *, fault: Fault | Plan | None = None, hidden: Collection[str] = ()) -> None:
        """`fault`: how every request to generate fails, or a plan. `hidden`: paths that are answered with 403."""
        self.target = target
        """Where requests go; may be changed at any time. Where nobody answers there, connections are cut."""
        self.url = ""
        self._plan: Plan = fault if callable(fault) else always(fault)
        self._hidden = hidden
        self._runner: web.AppRunner | None = None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        timeout = aiohttp.ClientTimeout(total=None)
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None and self._http is not None
        await self._runner.cleanup()
        await self._http.close()

    async def _handle(self, request: web.Request) -> web.Response:
        if request.path in self._hidden:
            return error(403, "hidden on purpose")
        sent = await request.read()
        # A client asks with an empty object whether a path is there.
        fault = self._plan() if request.path in (GENERATE, COMPLETIONS) and len(sent) > 2 else None
        if (failed := await fail_before_work(fault, request)) is not None:
            return failed
        try:
            status, headers, received = await self._forward(request, sent)
        except (aiohttp.ClientError, OSError):
            return cut(request)
        if fault is not None and status == 200:
            return fail_after_work(fault, request, json.loads(received))
        return web.Response(status=status, headers=headers, body=received)

    async def _forward(self, request: web.Request, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        assert self._http is not None
        async with self._http.request(
            request.method, self.target + request.path_qs, data=sent, headers=_kept(request.headers)
        ) as response:
            return response.status, _kept(response.headers), await response.read()


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _KEPT if name in headers}
