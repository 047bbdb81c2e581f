"""Samples of a real engine, and how far they are from what the trainer says of them."""

from __future__ import annotations

import asyncio

import aiohttp
import torch

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.rollout.client import Generation, SamplingParams
from tests.vllm.conftest import Pair

SHARED = list(range(100, 164))
"""Two blocks of the prefix cache."""
Sampled = list[tuple[list[int], Generation]]
"""Prompts, each with what was sampled after it."""


async def sampled(pair: Pair, num: int, max_tokens: int, temperature: float = 1.0) -> Sampled:
    """One try of each request."""
    prompts = [[*SHARED, 300 + i] for i in range(num)]
    params = [SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=i) for i in range(num)]
    calls = (pair.client.generate_once(ids, params[i], f"r-{i}") for i, ids in enumerate(prompts))
    return list(zip(prompts, await asyncio.gather(*calls), strict=True))


async def sampled_in_flight(pair: Pair) -> asyncio.Task[Sampled]:
    """Eight long replies that the engine is sampling."""
    running = asyncio.create_task(sampled(pair, 8, 400))
    while not await running_requests(pair.engine):
        await asyncio.sleep(0.02)
    return running


def max_difference(pair: Pair, samples: Sampled, version: int | None = None, temperature: float = 1.0) -> float:
    """max |trainer - engine| over all sampled ids, or over those of a version."""
    worst = 0.0
    for prompt, generation in samples:
        for span in generation.spans:
            if version in (None, span.version):
                places = range(len(prompt) + span.start, len(prompt) + span.end)
                expected = pair.policy.logprobs(prompt + generation.ids, places, temperature=temperature)
                got = generation.logprobs[span.start : span.end]
                worst = max(worst, *(abs(a - b) for a, b in zip(expected, got, strict=True)))
    return worst


async def running_requests(engine: VllmEngine) -> float:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {engine.key}"}) as http,
        http.get(engine.url + "/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


def copied(pair: Pair) -> dict[str, torch.Tensor]:
    """The policy's weights of now."""
    return {name: tensor.clone() for name, tensor in pair.local().items()}


@torch.no_grad()
def put(pair: Pair, weights: dict[str, torch.Tensor]) -> None:
    """Make the policy's weights those of then."""
    for name, tensor in pair.local().items():
        tensor.copy_(weights[name])
