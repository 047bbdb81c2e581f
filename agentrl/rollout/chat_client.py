"""A client of any OpenAI-compatible chat endpoint: text for text, with time limits and retries.

It serves `ctx.chat` (see `agentrl.rollout.chat`) and, with engine.api=chat, the policy itself.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from agentrl.config_servers import ChatConfig, EngineConfig
from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.chat_messages import Completion, Json, read_completion, to_request
from agentrl.rollout.retry import RetryPolicy, repeat
from agentrl.rollout.transport import Response, Transport, key_of
from agentrl.types import Message
from agentrl.urls import hide_passwords

LOGGER = logging.getLogger(__name__)
PATH = "/chat/completions"
MAX_REPLY_BYTES = 8 * 2**20
MAX_SEED = 2**31
"""Seeds stay below: some endpoints take no larger ones."""
_OTHER_NAMES = {"max_tokens": "max_completion_tokens"}
"""Endpoints that don't know a parameter may know it by another name."""
_UNKNOWN = re.compile("unsupported|not support|deprecated|unknown|unrecogni[sz]ed|unexpected|not permitted", re.I)
"""How they say so: OpenAI, Anthropic, vLLM, transformers, Mistral."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """What the endpoint said, and what it was asked with."""

    completion: Completion
    sampling: Json


class ChatClient:
    """One chat endpoint. It connects when first asked; close it at the end."""

    def __init__(self, config: ChatConfig | EngineConfig, **sampling: Any) -> None:
        """`sampling`: what each request asks for where it says nothing else.

        Raises ConfigError where the variable that should hold the key isn't set.
        """
        self.config = config
        self.sampling = sampling
        url = config.url or ""
        self.name = f"{config.model} at {hide_passwords(url)}"
        """The engine's name in records."""
        self.faults: Counter[EngineFault] = Counter()
        """Failed tries by kind, also those that a later try made good."""
        self._retry = RetryPolicy.of(config)
        self._renamed: dict[str, str | None] = {}
        """Parameters that the endpoint doesn't know: by which name it does; None: by none."""
        self._http = Transport(
            url,
            key=key_of(config),
            request_timeout_s=config.request_timeout_s,
            connect_timeout_s=config.connect_timeout_s,
            section=config.section,
            max_reply_bytes=MAX_REPLY_BYTES,
            hints={404: f"; {config.url_key} ends before {PATH}, mostly in /v1, or the model's name is wrong"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. May be called more than once."""
        await self._http.close()

    async def ask(
        self, messages: Sequence[Message], *, sampling: Json, request_id: str, tools: Sequence[Json] = ()
    ) -> ChatReply:
        """The reply to a conversation. Raises EngineError when the tries are used up, ContextOverflow at once.

        `sampling`: parameters by OpenAI's names. One that is None isn't sent, nor one that the endpoint has refused.
        """
        if self.config.url is None:
            raise EngineError(f"no endpoint is set to ask: {self.config.url_key}=… {self.config.section}.model=…")
        body: Json = {"model": self.config.model, "messages": [to_request(message) for message in messages]}
        body |= {"tools": list(tools)} if tools else {}
        wanted = self.sampling | sampling
        return await repeat(lambda _: self._ask_once(body, wanted, request_id), self._retry, self._count)

    async def _ask_once(self, body: Json, sampling: Json, request_id: str) -> ChatReply:
        """A request has no effect at the endpoint, so that repeating one whose reply was lost is safe."""
        while True:
            sent = self._known(sampling)
            response = await self._http.request("POST", PATH, body | sent, request_id)
            if not self._learn(response, sent):
                break
        answer = self._http.read(response, PATH, request_id)
        try:
            return ChatReply(completion=read_completion(answer), sampling=sent)
        except ValueError as error:
            raise self._http.error(PATH, request_id, str(error), EngineFault.GARBAGE) from None

    def _known(self, sampling: Json) -> Json:
        """The parameters by the names that the endpoint knows."""
        named = ((self._renamed.get(name, name), value) for name, value in sampling.items())
        return {name: value for name, value in named if name is not None and value is not None}

    def _learn(self, response: Response, sent: Json) -> bool:
        """Was the request refused because of a parameter that the endpoint doesn't know? Then it isn't sent again."""
        said = response.message
        if not (response.is_refusal and _UNKNOWN.search(said)):
            return False
        refused = next((name for name in sent if re.search(rf"\b{name}\b", said)), None)
        if refused is None:
            return False
        asked = next((name for name, other in self._renamed.items() if other == refused), refused)
        if self._renamed.get(asked, asked) == refused:  # else a request beside this one has learnt it already
            self._renamed[asked] = _OTHER_NAMES.get(asked) if refused == asked else None
            LOGGER.warning("%s: %s. From now on %s is sent as %s", self.name, said, asked, self._renamed[asked])
        return True

    def _count(self, error: EngineError) -> None:
        self.faults[error.kind] += 1
