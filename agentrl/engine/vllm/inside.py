"""What runs inside a vLLM server: the key for every route, and what workers are asked beside vLLM's own questions.

vLLM imports this by name (`--middleware`, `--worker-extension-cls`); nobody else does. Its own key guards only some
routes, and not those that change weights.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

from agentrl.engine.vllm.receive import AgentrlWeightTransferEngine

KEY_VARIABLE = "AGENTRL_ENGINE_KEY"


class RequireKey:
    """ASGI middleware: nothing is answered without the key, but for `/health`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self._expected = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope.get("path") == "/health" or self._shows_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = b'{"error": {"message": "the key is wrong or missing", "code": 401}}'
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _shows_key(self, scope: dict[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


class WorkerExtension:
    """Methods that the worker gets, for `/collective_rpc`."""

    weight_transfer_engine: AgentrlWeightTransferEngine

    def agentrl_received(self) -> dict[str, str]:
        """See AgentrlWeightTransferEngine.received."""
        return self.weight_transfer_engine.received
