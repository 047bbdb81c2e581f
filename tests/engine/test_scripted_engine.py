"""The scripted engine and the embedded one agree; and only the scripted one promises equality bit for bit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from transformers import Qwen2ForCausalLM

from agentrl.engine.embedded import EmbeddedEngine
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.testing.engine import ScriptedEngine

PROMPTS = [[5, 9, 2], [7], [3, 3, 8, 1, 4, 6]]


async def replies(engine: EmbeddedEngine, temperature: float, prompts: list[list[int]]) -> list[Generation]:
    params = [SamplingParams(max_tokens=12, temperature=temperature, seed=n) for n in range(len(prompts))]
    async with HttpClient(engine.url, key=engine.key) as client:
        return await asyncio.gather(
            *(client.generate(ids, one, f"r{n}") for n, (ids, one) in enumerate(zip(prompts, params, strict=True)))
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_it_says_what_the_embedded_engine_says(
    model: Qwen2ForCausalLM, model_folder: Path, engine: EmbeddedEngine, temperature: float
) -> None:
    async with ScriptedEngine(model_folder, threads=1) as scripted:
        ours, theirs = await replies(scripted, temperature, PROMPTS), await replies(engine, temperature, PROMPTS)
        assert scripted.weights_hash() == engine.weights_hash() and scripted.health() is None
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.ids == other.ids and mine.finish_reason == other.finish_reason
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert [(s.start, s.end, s.version) for s in mine.spans] == [(s.start, s.end, s.version) for s in other.spans]


async def test_a_reply_does_not_depend_on_its_company(model: Qwen2ForCausalLM, model_folder: Path) -> None:
    async with ScriptedEngine(model_folder, threads=1) as scripted:
        together = await replies(scripted, 1.0, PROMPTS)
        (alone,) = await replies(scripted, 1.0, PROMPTS[:1])
    assert (alone.ids, alone.logprobs) == (together[0].ids, together[0].logprobs)
