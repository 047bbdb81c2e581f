"""The client behind `ctx.chat`: any OpenAI-compatible chat endpoint, with time limits and retries.

It gets text for text. What it says is recorded by `agentrl.rollout.chat`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_aiohttp import AiohttpTransport

from agentrl.config import ChatConfig
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Message

PATH = "/chat/completions"
FIRST_WAIT_S = 0.5
MAX_WAIT_S = 30.0
"""Also of what the endpoint asks for by Retry-After."""
MAX_REPLY_BYTES = 8 * 1024**2
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """What the endpoint said, and what it was asked with."""

    message: Message
    finish_reason: str
    sampling: dict[str, Any]


class ChatClient:
    """One chat endpoint. It connects when first asked; close it at the end."""

    def __init__(self, config: ChatConfig) -> None:
        """Raises ConfigError where the variable that should hold the key isn't set."""
        self.config = config
        self.name = f"{config.model} at {_host(config.url)}"
        """The engine's name in records."""
        self._key = _key(config)
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections. May be called more than once."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def ask(self, messages: list[Message], *, seed: int, request_id: str) -> ChatReply:
        """The reply to a conversation. Raises EngineError once `chat.max_attempts` requests have failed."""
        if self.config.url is None:
            raise EngineError("the environment asks ctx.chat, but no endpoint is set: chat.url=… chat.model=…")
        sampling: dict[str, Any] = {
            "temperature": self.config.temperature, "max_tokens": self.config.max_tokens, "seed": seed,
        }  # fmt: skip
        body = {name: value for name, value in sampling.items() if value is not None}
        body |= {"model": self.config.model, "messages": [_as_json(message) for message in messages]}
        answer = await self._with_retries(body, request_id)
        message, finish_reason = self._read(answer, request_id)
        return ChatReply(message=message, finish_reason=finish_reason, sampling=sampling)

    async def _with_retries(self, body: dict[str, Any], request_id: str) -> dict[str, Any]:
        """A request has no effect at the endpoint, so that repeating one whose reply was lost is safe."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._request(body, request_id)
            except _Retry as retry:
                if attempt == self.config.max_attempts:
                    raise self._error(request_id, f"{retry.what} ({attempt} requests; chat.max_attempts)") from retry
                wait_s = max(retry.after_s, FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
                await asyncio.sleep(min(wait_s, MAX_WAIT_S))

    async def _request(self, body: dict[str, Any], request_id: str) -> dict[str, Any]:
        """One request. Raises _Retry where another may go better, EngineError where not."""
        try:
            async with asyncio.timeout(self.config.timeout_s):
                status, headers, content = await self._post(body, request_id)
        except (TimeoutError, httpx.TimeoutException):
            raise _Retry(f"no reply within {self.config.timeout_s:g} s (chat.timeout_s)") from None
        except (httpx.HTTPError, OSError) as error:
            raise _Retry(f"the connection failed ({self._clean(str(error))}): is it running?") from error
        if status in RETRIED:
            raise _Retry(f"HTTP {status}: {self._clean(_words(content))}", _seconds(headers.get("retry-after")))
        if status != 200:
            raise self._error(request_id, f"HTTP {status}: {self._clean(_words(content))}{_hint(status)}")
        answer = _loads(content)
        if not isinstance(answer, dict):
            raise _Retry(f"the reply is no JSON object: {self._clean(_words(content))!r}")
        return answer

    async def _post(self, body: dict[str, Any], request_id: str) -> tuple[int, httpx.Headers, bytes]:
        url = f"{str(self.config.url).rstrip('/')}{PATH}"
        content = bytearray()
        async with self._client().stream("POST", url, content=json.dumps(body).encode()) as response:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_REPLY_BYTES:
                    raise self._error(request_id, f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        return response.status_code, response.headers, bytes(content)

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
            raise self._error(request_id, "the reply has no choices[0].message: no chat completion") from None
        if not isinstance(content, str):
            raise self._error(request_id, f"the reply's content is {type(content).__name__}, not text")
        thought = reasoning if isinstance(reasoning, str) else None
        return Message(role="assistant", content=content, reasoning=thought), str(reason)

    def _error(self, request_id: str, what: str) -> EngineError:
        url = _host(self.config.url)
        return EngineError(f"chat request {request_id!r} to {self.config.model!r} at {url}{PATH}: {what}")

    def _clean(self, text: str) -> str:
        """The endpoint's words without the key: some servers echo it."""
        return text.replace(self._key, "***") if self._key else text


class _Retry(Exception):
    """A request that failed in a way that may pass."""

    def __init__(self, what: str, after_s: float = 0.0) -> None:
        super().__init__(what)
        self.what = what
        self.after_s = after_s


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


def _words(content: bytes) -> str:
    """The server's own words."""
    answer = _loads(content)
    try:
        return str(answer["error"]["message"])[:300]
    except (KeyError, TypeError):
        return content[:300].decode("utf-8", "replace")


def _seconds(text: str | None) -> float:
    """Retry-After in seconds; 0 where there is none, or a date."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0


def _hint(status: int) -> str:
    hints = {
        401: "; the key is wrong or missing: name the variable that holds it by chat.key_env",
        404: "; chat.url ends before /chat/completions, mostly in /v1",
    }
    return hints.get(status, "")
