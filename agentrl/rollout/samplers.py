"""Who produces a reply: an engine, a chat endpoint, or a script that is played through the same loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, Protocol

from agentrl.environment import Environment, Oracle
from agentrl.errors import EngineError, EngineFault, RolloutFault
from agentrl.rollout.chat_client import MAX_SEED, ChatClient
from agentrl.rollout.chat_messages import written
from agentrl.rollout.client import Generation, InferenceClient, SamplingParams, VersionSpan
from agentrl.rollout.faults import describe
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.unrendered import Unrendered
from agentrl.types import Message, Sampler, StopReason, derive_seed

MAX_IDLE_ABORTS = 3
"""Calls of one turn in a row that the engine may cut before their first id."""


class ReplySampler(Protocol):
    """Samples one reply after a context, given as ids and as messages."""

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation: ...


class EngineSampler:
    """The policy: only ids go to the engine. A reply that the engine cuts (for new weights, or because it stops) is
    continued from its ids, by further calls with request ids and seeds of their own."""

    def __init__(self, client: InferenceClient) -> None:
        self.client = client

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        part = await self.client.generate(ids, params, request_id)
        parts, sampled = [part], list(part.ids)
        while part.finish_reason == "abort":
            if (reason := _ended(sampled, params)) is not None:
                parts[-1] = replace(part, finish_reason=reason)
                break
            if len(parts) >= MAX_IDLE_ABORTS and not any(part.ids for part in parts[-MAX_IDLE_ABORTS:]):
                what = f"the engine cut request {request_id!r} {MAX_IDLE_ABORTS} times in a row without a single id"
                raise EngineError(f"{what} ({part.engine}): is it being stopped?", EngineFault.ABORTED)
            number = len(parts)
            rest = replace(
                params, max_tokens=params.max_tokens - len(sampled), seed=derive_seed(params.seed, "call", number)
            )
            part = await self.client.generate(ids + sampled, rest, f"{request_id}-call{number}")
            part = replace(part, sampling=rest.to_json())
            parts.append(part)
            sampled += part.ids
        return Generation.joined(parts)


def _ended(sampled: list[int], params: SamplingParams) -> Literal["stop", "length"] | None:
    """How a reply that was cut had ended all the same, just before."""
    if sampled and sampled[-1] in params.stop_token_ids:
        return "stop"
    return "length" if len(sampled) >= params.max_tokens else None


class ChatSampler:
    """A policy behind a chat endpoint: messages and tools go out, text comes back; the ids only count its tokens."""

    def __init__(self, client: ChatClient, renderer: Renderer | Unrendered, env: Environment) -> None:
        self.client = client
        self.renderer = renderer
        self.env = env

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        tools = [tool.spec() for tool in self.env.tools]
        reply = await self.client.ask(messages, sampling=chat_sampling(params), request_id=request_id, tools=tools)
        completion = reply.completion
        counted = self.renderer.encode_text(written(completion.message))
        return Generation(
            request_id=request_id,
            engine=self.client.name,
            ids=counted,
            logprobs=[math.nan] * len(counted),
            spans=[VersionSpan(version=-1, start=0, end=len(counted))],
            finish_reason="length" if completion.finish_reason == "length" else "stop",
            sampler=Sampler.TEXT,
            message=completion.message,
            num_tokens=completion.num_tokens,
            sampling=reply.sampling,
        )


def chat_sampling(params: SamplingParams) -> dict[str, Any]:
    """Parameters by OpenAI's names; what is at its default isn't sent, since not every endpoint knows it."""
    return {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p if params.top_p < 1 else None,
        "top_k": params.top_k or None,
        "seed": params.seed % MAX_SEED,
    }


def written_reply(
    message: Message, renderer: Renderer, params: SamplingParams, request_id: str, sampler: Sampler
) -> Generation:
    """What somebody other than a model says, as the ids that one would have sampled for it."""
    reply = renderer.encode_reply(message)
    sampled = reply[: params.max_tokens]
    return Generation(
        request_id=request_id,
        engine=str(sampler),
        ids=sampled,
        logprobs=[math.nan] * len(sampled),
        spans=[],
        finish_reason="stop" if len(sampled) == len(reply) else "length",
        sampler=sampler,
    )


class ScriptedSampler:
    """A script's replies as the ids that the template would have had sampled; no logprobs, no versions."""

    def __init__(self, oracle: Oracle, renderer: Renderer) -> None:
        self.oracle = oracle
        self.renderer = renderer

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        return written_reply(self._say(messages), self.renderer, params, request_id, Sampler.SCRIPTED)

    def _say(self, messages: list[Message]) -> Message:
        """Scripts are part of the environment, and so are their errors."""
        try:
            return self.oracle(messages)
        except Exception as error:
            raise RolloutFault.of(StopReason.ENV_ERROR, describe("environment.oracle", error)) from error
