"""The host's end of a box's channel: requests go out, each reply finds who asked.

Everything that comes in may have been written by an enemy. Lengths are checked against what was asked for before
anything is read, and what isn't as agreed ends this channel and no other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from asyncio import Future, StreamWriter
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandboxes.channel.inside.server import HEADER

MAX_TEXT_BYTES = 64 * 1024
"""Of a reply's JSON."""
READY = 0
"""The number of the message that a server starts with."""


class Reader(Protocol):
    """What a `StreamReader` is for the client."""

    async def readexactly(self, n: int, /) -> bytes:
        """Raises IncompleteReadError where it ends before."""


@dataclass(kw_only=True, slots=True)
class _Waiting:
    """Who waits for a reply, and how many bytes it may have."""

    reply: Future[tuple[dict[str, Any], bytes]]
    max_bytes: int


class Client:
    """One box's channel. Every method raises SandboxError where the box is gone."""

    def __init__(self, reader: Reader, writer: StreamWriter, *, name: str) -> None:
        self.name = name
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(READY + 1)
        self._waiting: dict[int, _Waiting] = {}
        self._failure: SandboxError | None = None
        self._ready = self._expect(READY, 0)
        self._listening = asyncio.create_task(self._listen())

    async def ready(self, timeout_s: float | None) -> None:
        """The server runs. Raises TimeoutError; with None, whoever waits has a limit of its own."""
        await asyncio.wait_for(self._ready, timeout_s)

    async def ask(
        self, request: dict[str, Any], body: bytes = b"", *, limit_s: float, max_bytes: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        """The reply, with at most `max_bytes`. Raises OSError and ValueError that the box tells of.

        Whoever is cancelled or tired of waiting has the command behind the request killed.
        """
        number = next(self._numbers)
        reply = self._expect(number, max_bytes)
        try:
            async with asyncio.timeout(limit_s):
                await self._send(number, request, body)
                return _told(*await asyncio.shield(reply), request)
        except TimeoutError:
            self._cancel(number)
            raise SandboxError(
                f"box {self.name}: no answer to {request['do']!r} within {limit_s:g} s, its own limit and a grace: "
                "it is wedged, or this machine is overloaded",
                SandboxFault.CHANNEL,
            ) from None
        except asyncio.CancelledError:
            self._cancel(number)
            raise

    async def close(self) -> None:
        """Hang up; the server ends the box then. Safe to call twice."""
        self._fail(SandboxError(f"box {self.name} was stopped", SandboxFault.DIED))
        self._writer.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    def _expect(self, number: int, max_bytes: int) -> Future[tuple[dict[str, Any], bytes]]:
        if self._failure is not None:
            raise self._failure
        reply: Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(_look_at)
        self._waiting[number] = _Waiting(reply=reply, max_bytes=max_bytes)
        return reply

    async def _send(self, number: int, request: dict[str, Any], body: bytes) -> None:
        text = json.dumps(request).encode()
        try:
            self._writer.write(HEADER.pack(number, len(text), len(body)) + text)
            self._writer.write(body)
            await self._writer.drain()
        except ConnectionError:  # `_listen` sees it too, and says why
            await asyncio.wait([self._listening])

    def _cancel(self, number: int) -> None:
        """Its reply is still awaited, and dropped."""
        if self._failure is None:
            other = next(self._numbers)
            self._expect(other, 0)
            text = json.dumps({"do": "cancel", "number": number}).encode()
            self._writer.write(HEADER.pack(other, len(text), 0) + text)

    async def _listen(self) -> None:
        try:
            while True:
                await self._take_reply()
        except (asyncio.IncompleteReadError, ConnectionError):
            self._fail(SandboxError(f"box {self.name} ended while it was in use", SandboxFault.DIED))
        except (ValueError, RecursionError) as error:
            self._fail(SandboxError(f"box {self.name} doesn't keep to its protocol: {error}", SandboxFault.CHANNEL))

    async def _take_reply(self) -> None:
        """Raises ValueError for what nobody asked for."""
        number, text_bytes, body_bytes = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        waiting = self._waiting.get(number)
        if waiting is None or text_bytes > MAX_TEXT_BYTES or body_bytes > waiting.max_bytes:
            raise ValueError(f"a reply {number} of {text_bytes} + {body_bytes} bytes that nobody asked for")
        told = json.loads(await self._reader.readexactly(text_bytes))
        body = await self._reader.readexactly(body_bytes)
        if not isinstance(told, dict):
            raise ValueError("a reply that is no JSON object")
        del self._waiting[number]
        if not waiting.reply.done():
            waiting.reply.set_result((told, body))

    def _fail(self, failure: SandboxError) -> None:
        self._failure = self._failure or failure
        for waiting in self._waiting.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(self._failure)
        self._waiting.clear()
        if not self._writer.transport.is_closing():
            self._writer.transport.abort()


def _told(told: dict[str, Any], body: bytes, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Raises what the box tells of."""
    if told.get("is_too_large"):
        raise ValueError(f"{request.get('path')}: more than the {request.get('max_bytes')} bytes asked for")
    if isinstance(number := told.get("errno"), int):
        number %= 1 << 31  # `strerror` takes no more
        raise OSError(number, os.strerror(number), request.get("path"))
    return told, body


def _look_at(reply: Future[tuple[dict[str, Any], bytes]]) -> None:
    """Nobody may be there any more to look at an exception; asyncio would complain."""
    if not reply.cancelled():
        reply.exception()
