"""How a scripted endpoint fails, and a seeded plan that says which request fails how.

before the work   500 429 reset timeout overflow            the script is not asked
after the work    lost_reply garbage no_ids no_logprobs short_logprobs nan null sentinel
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, get_args

from aiohttp import web

Fault = Literal[
    "500", "429", "reset", "timeout", "overflow",
    "lost_reply", "garbage", "no_ids", "no_logprobs", "short_logprobs", "nan", "null", "sentinel",
]  # fmt: skip
FAULTS: tuple[Fault, ...] = get_args(Fault)
SENTINEL = -9999.0
"""What vLLM writes for a logprob of minus infinity."""
HANG_S = 3600.0

Plan = Callable[[], Fault | None]
"""Asked once for each request to generate."""


def always(fault: Fault | None) -> Plan:
    """Every request fails alike, or none does."""
    return lambda: fault


class FaultPlan:
    """A share of the requests fails, each in a way drawn from `faults`. Equal seeds give equal sequences."""

    def __init__(self, share: float, faults: Sequence[Fault] = FAULTS, seed: int = 0) -> None:
        unknown = set(faults) - set(FAULTS)
        if unknown or not faults:
            raise ValueError(f"unknown faults {sorted(unknown)}; known are {', '.join(FAULTS)}")
        self.share = share
        self.faults = tuple(faults)
        self.counts: dict[Fault, int] = dict.fromkeys(self.faults, 0)
        """How often each was drawn."""
        self._random = random.Random(seed)

    def __call__(self) -> Fault | None:
        if self._random.random() >= self.share:
            return None
        fault = self._random.choice(self.faults)
        self.counts[fault] += 1
        return fault


async def fail_before_work(fault: Fault | None, request: web.Request) -> web.Response | None:
    """The answer of a request whose work is never begun; None: go on."""
    if fault == "reset":
        return cut(request, reset=True)
    if fault == "timeout":
        await asyncio.sleep(HANG_S)
    if fault == "500":
        return error(500, "broken on purpose: Out of range float values are not JSON compliant")
    if fault == "429":
        response = error(429, "busy on purpose")
        response.headers["Retry-After"] = "0.01"
        return response
    if fault == "overflow":
        return error(400, "This model's maximum context length is 10 tokens, but 11 were asked for")
    return None


def fail_after_work(fault: Fault | None, request: web.Request, body: dict[str, Any]) -> web.Response:
    """The answer of a request whose work is done."""
    if fault == "lost_reply":
        return cut(request)
    if fault == "garbage":
        return web.Response(text="<html>not json")
    choice = body["choices"][0]
    if fault == "no_ids":
        del choice["token_ids"]
    elif fault == "no_logprobs":
        choice["logprobs"] = None
    elif fault == "short_logprobs":
        choice["logprobs"]["content"].pop()
    elif fault in ("nan", "null", "sentinel"):
        bad = {"nan": float("nan"), "null": None, "sentinel": SENTINEL}[cast(str, fault)]
        choice["logprobs"]["content"][0]["logprob"] = bad
    return web.json_response(body)


def cut(request: web.Request, *, reset: bool = False) -> web.Response:
    """End the connection without an answer; `reset`: as a crashed machine does, not as a process that ends.

    The response that is returned goes nowhere.
    """
    if (transport := request.transport) is not None:
        if reset:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()


def error(status: int, message: str) -> web.Response:
    """An error in the form of an OpenAI-compatible server."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
