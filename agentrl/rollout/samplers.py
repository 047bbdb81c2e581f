"""Who produces a reply: an engine, or a script that is played through the same loop."""

from __future__ import annotations

import math
from typing import Protocol

from agentrl.environment import Oracle
from agentrl.errors import RolloutFault
from agentrl.rollout.client import Generation, InferenceClient, SamplingParams
from agentrl.rollout.faults import describe
from agentrl.rollout.renderer import Renderer
from agentrl.types import Message, Sampler, StopReason


class ReplySampler(Protocol):
    """Samples one reply after a context, given as ids and as messages."""

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation: ...


class EngineSampler:
    """The policy: only ids go to the engine."""

    def __init__(self, client: InferenceClient) -> None:
        self.client = client

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        return await self.client.generate(ids, params, request_id)


class ScriptedSampler:
    """A script's replies as the ids that the template would have had sampled; no logprobs, no versions."""

    def __init__(self, oracle: Oracle, renderer: Renderer) -> None:
        self.oracle = oracle
        self.renderer = renderer

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        reply = self.renderer.encode_reply(self._say(messages))
        sampled = reply[: params.max_tokens]
        return Generation(
            request_id=request_id,
            engine="scripted",
            ids=sampled,
            logprobs=[math.nan] * len(sampled),
            spans=[],
            finish_reason="stop" if len(sampled) == len(reply) else "length",
            sampler=Sampler.SCRIPTED,
        )

    def _say(self, messages: list[Message]) -> Message:
        """Scripts are part of the environment, and so are their errors."""
        try:
            return self.oracle(messages)
        except Exception as error:
            raise RolloutFault.of(StopReason.ENV_ERROR, describe("environment.oracle", error)) from error
