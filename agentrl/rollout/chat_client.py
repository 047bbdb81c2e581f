"""The client behind `ctx.chat`: any OpenAI-compatible chat endpoint, with time limits and retries.

It gets text for text. What it says is recorded by `agentrl.rollout.chat`.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_aiohttp import AiohttpTransport

from agentrl.config import ChatConfig
from agentrl.errors import ConfigError, EngineError, EngineFault
from agentrl.rollout.retry import RetryPolicy, repeat
from agentrl.rollout.transport import Response, retry_after_s
from agentrl.types import Message

PATH = "/chat/completions"
MAX_REPLY_BYTES = 8 * 1024**2
MAX_ECHO_CHARACTERS = 300
"""Of what the server said, in an error."""
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """What the endpoint said, and what it was asked with."""

    message: Message
    finish_reason: str
    sampling: dict[str, Any]


class ChatClient:
    """One chat endpoint. It connects when first asked; close it at the end."""

    def __init__(self, config: ChatConfig, retry: RetryPolicy | None = None) -> None:
        """Raises ConfigError where the variable that should hold the key isn't set."""
        self.config = config
        self.name = f"{config.model} at {_host(config.url)}"
        """The engine's name in records."""
        self._key = _key(config)
        self._retry = retry or RetryPolicy(max_tries=config.max_tries)
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections. May be called more than once."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def ask(self, messages: list[Message], *, seed: int, request_id: str) -> ChatReply:
        """The reply to a conversation. Raises EngineError when `chat.max_tries` have failed."""
        if self.config.url is None:
            raise EngineError("the environment asks ctx.chat, but no endpoint is set: chat.url=… chat.model=…")
        sampling: dict[str, Any] = {
            "temperature": self.config.temperature, "max_tokens": self.config.max_tokens, "seed": seed,
        }  # fmt: skip
        body = {name: value for name, value in sampling.items() if value is not None}
        body |= {"model": self.config.model, "messages": [_as_json(message) for message in messages]}
        answer = await repeat(lambda _: self._request(body, request_id), self._retry, on_fault=lambda error: None)
        message, finish_reason = self._read(answer, request_id)
        return ChatReply(message=message, finish_reason=finish_reason, sampling=sampling)

    async def _request(self, body: dict[str, Any], request_id: str) -> dict[str, Any]:
        """One try. A request has no effect at the endpoint, so that repeating one whose reply was lost is safe."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                response = await self._post(body, request_id)
        except (TimeoutError, httpx.TimeoutException):
            what = f"no reply within {self.config.timeout_s:g} s (chat.timeout_s)"
            raise self._error(request_id, what, EngineFault.TIMEOUT) from None
        except (httpx.HTTPError, OSError) as error:
            what = f"the connection failed ({error}): is it running?"
            raise self._error(request_id, what, EngineFault.CONNECTION) from error
        if response.status != 200:
            kind = EngineFault.BUSY if response.status in RETRIED else EngineFault.REFUSED
            what = f"HTTP {response.status}: {response.message[:MAX_ECHO_CHARACTERS]}{_hint(response.status)}"
            raise self._error(request_id, what, kind, response.retry_after_s)
        answer = _loads(response.body)
        if not isinstance(answer, dict):
            what = f"the reply is no JSON object: {response.message[:MAX_ECHO_CHARACTERS]!r}"
            raise self._error(request_id, what, EngineFault.GARBAGE)
        return answer

    async def _post(self, body: dict[str, Any], request_id: str) -> Response:
        url = f"{str(self.config.url).rstrip('/')}{PATH}"
        content = bytearray()
        async with self._client().stream("POST", url, content=json.dumps(body).encode()) as response:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_REPLY_BYTES:
                    what = f"the reply is longer than {MAX_REPLY_BYTES} bytes"
                    raise self._error(request_id, what, EngineFault.REFUSED)
        return Response(response.status_code, bytes(content), retry_after_s(response.headers))

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            headers = {"Content-Type": "application/json"}
            headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._http = httpx.AsyncClient(
                transport=AiohttpTransport(limits=httpx.Limits(max_connections=0), trust_env=False),
                headers=headers,
                timeout=httpx.Timeout(self.config.timeout_s, pool=None),
                trust_env=False,
            )
        return self._http

    def _read(self, answer: dict[str, Any], request_id: str) -> tuple[Message, str]:
        try:
            choice = answer["choices"][0]
            said, reason = choice["message"], choice.get("finish_reason")
            content, reasoning = said.get("content"), said.get("reasoning_content")
        except (KeyError, IndexError, TypeError, AttributeError):
            what = "the reply has no choices[0].message: no chat completion"
            raise self._error(request_id, what, EngineFault.REFUSED) from None
        if not isinstance(content, str):
            what = f"the reply's content is {type(content).__name__}, not text"
            raise self._error(request_id, what, EngineFault.REFUSED)
        thought = reasoning if isinstance(reasoning, str) else None
        return Message(role="assistant", content=content, reasoning=thought), str(reason)

    def _error(self, request_id: str, what: str, kind: EngineFault, retry_after_s: float | None = None) -> EngineError:
        """`what` may hold the server's words, and some servers echo the key."""
        said = what.replace(self._key, "***") if self._key else what
        text = f"chat request {request_id!r} to {self.config.model!r} at {_host(self.config.url)}{PATH}: {said}"
        return EngineError(text, kind, retry_after_s)


def _key(config: ChatConfig) -> str | None:
    if config.key_env is None:
        return None
    key = os.environ.get(config.key_env)
    if not key:
        raise ConfigError(f"chat.key_env={config.key_env}: this environment variable is not set; put the key into it")
    return key


def _host(url: str | None) -> str:
    """The URL without user and password."""
    parsed = httpx.URL(url or "")
    return str(parsed.copy_with(userinfo=b"")).rstrip("/")


def _as_json(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name}
    return body | {name: value for name, value in optional.items() if value is not None}


def _loads(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _hint(status: int) -> str:
    hints = {
        401: "; the key is wrong or missing: name the variable that holds it by chat.key_env",
        404: "; chat.url ends before /chat/completions, mostly in /v1",
    }
    return hints.get(status, "")
