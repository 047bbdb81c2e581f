"""Raw HTTP to an engine: the tests see exactly what a client sees."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from agentrl.engine.embedded import EmbeddedEngine

GENERATE = "/inference/v1/generate"


class Wire:
    """Posts JSON with the engine's key."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine

    async def post(self, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key or self.engine.key}"}
        data = body if isinstance(body, bytes) else None
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(self.engine.url + path, json=None if data is not None else body, data=data) as response,
        ):
            return response.status, await response.json()

    async def generate(self, token_ids: list[int], request_id: str | None = None, **sampling: Any) -> dict[str, Any]:
        """One choice; the sampling is checked for success."""
        body: dict[str, Any] = {"token_ids": token_ids, "sampling_params": sampling}
        if request_id is not None:
            body["request_id"] = request_id
        status, answer = await self.post(GENERATE, body)
        assert status == 200, answer
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    async def wait_sampled(self, request_id: str, count: int) -> None:
        """Until the running request has that many ids."""
        await wait_for(lambda: self.engine.loop.sampled_so_far(request_id) >= count)


async def wait_for(condition: Any, timeout_s: float = 20.0) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.002)


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]
