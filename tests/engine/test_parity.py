"""What the engine reports equals a plain forward pass over what it sampled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from tests.engine.models import EOS, forward_logits, picked, prompts
from tests.engine.wire import Wire, logprobs_of

LENGTHS = [1, 2, 31, 32, 33, 64, 100, 130, 200, 5, 7, 3]
"""Ragged, around page borders, and longer than one step's 128 tokens."""


def _processed(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """The reference, one row at a time: keep top_k, then the fewest tokens that reach top_p."""
    rows = []
    for row in logits / temperature:
        order = row.argsort(descending=True).tolist()
        keep = order[: top_k or len(order)]
        if top_p < 1:
            probabilities = torch.softmax(row[keep], -1).tolist()
            mass, count = 0.0, 0
            while mass < top_p and count < len(keep):
                mass, count = mass + probabilities[count], count + 1
            keep = keep[:count]
        cut = torch.full_like(row, -torch.inf)
        cut[keep] = row[keep]
        rows.append(torch.log_softmax(cut, -1))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 0.9, "top_k": 20, "top_p": 0.9},
    ],
)
async def test_logprobs_are_those_of_the_sampled_distribution(
    model: Qwen2ForCausalLM, wire: Wire, sampling: dict[str, Any]
) -> None:
    asked = prompts(LENGTHS)
    replies = await asyncio.gather(
        *(wire.generate(p, max_tokens=20, seed=i, ignore_eos=True, **sampling) for i, p in enumerate(asked))
    )
    for prompt, choice in zip(asked, replies, strict=True):
        ids = choice["token_ids"]
        assert len(ids) == 20
        full = {"top_k": 0, "top_p": 1.0, **sampling}
        expected = picked(_processed(forward_logits(model, prompt, ids), **full), ids)
        assert (expected - torch.tensor(logprobs_of(choice))).abs().max() <= 1e-5


async def test_greedy_takes_the_most_likely_and_reports_plain_logprobs(model: Qwen2ForCausalLM, wire: Wire) -> None:
    for prompt in prompts([1, 40, 150]):
        choice = await wire.generate(prompt, max_tokens=12, temperature=0, top_k=3, top_p=0.5, ignore_eos=True)
        logits = forward_logits(model, prompt, choice["token_ids"])
        assert choice["token_ids"] == logits.argmax(-1).tolist()
        expected = picked(torch.log_softmax(logits, -1), choice["token_ids"])
        assert (expected - torch.tensor(logprobs_of(choice))).abs().max() <= 1e-5


async def test_forced_ids_are_decoded_and_scored(model: Qwen2ForCausalLM, wire: Wire) -> None:
    (prompt,) = prompts([9])
    forced = [5, EOS, 100, EOS, 7]  # a stop id does not end a forced sequence
    choice = await wire.generate(prompt, trace_decode_token_ids=forced)
    assert choice["token_ids"] == forced
    assert choice["finish_reason"] == "length"
    expected = picked(torch.log_softmax(forward_logits(model, prompt, forced), -1), forced)
    assert (expected - torch.tensor(logprobs_of(choice))).abs().max() <= 1e-5


async def test_sampled_frequencies_follow_the_distribution(model: Qwen2ForCausalLM, wire: Wire) -> None:
    (prompt,) = prompts([6])
    replies = await asyncio.gather(
        *(wire.generate(prompt, max_tokens=1, seed=seed, temperature=0.5, top_k=4) for seed in range(400))
    )
    ids = [choice["token_ids"][0] for choice in replies]
    probabilities = _processed(forward_logits(model, prompt, [0]), 0.5, 4, 1.0)[0].exp()
    for token in probabilities.nonzero()[:, 0].tolist():
        share = probabilities[token].item()
        deviation = (share * (1 - share) / len(ids)) ** 0.5
        assert abs(ids.count(token) / len(ids) - share) < 4 * deviation + 1e-9
    assert set(ids) <= set(probabilities.nonzero()[:, 0].tolist())


async def test_a_pool_too_small_for_all_requests_changes_nothing(model: Qwen2ForCausalLM, model_folder: Any) -> None:
    from agentrl.engine.embedded import EmbeddedEngine

    async with EmbeddedEngine(model_folder, threads=1, max_batch_tokens=64, cache_tokens=256) as engine:
        wire = Wire(engine)
        assert engine.max_model_len == 256
        asked = prompts([40] * 12)
        replies = await asyncio.gather(
            *(wire.generate(p, max_tokens=40, seed=i, ignore_eos=True) for i, p in enumerate(asked)),
            wire.generate(prompts([200])[0], max_tokens=56, seed=99, ignore_eos=True),  # fills the whole pool alone
        )
        for prompt, choice in zip(asked, replies, strict=False):
            ids = choice["token_ids"]
            expected = picked(torch.log_softmax(forward_logits(model, prompt, ids), -1), ids)
            assert (expected - torch.tensor(logprobs_of(choice))).abs().max() <= 1e-5
        assert len(replies[-1]["token_ids"]) == 56
