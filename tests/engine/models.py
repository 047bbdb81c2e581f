"""Tiny random models in folders, as an engine loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

VOCAB, EOS, WINDOW = 128, 2, 512


def make_model(folder: Path, *, tied: bool = True, seed: int = 0) -> Qwen2ForCausalLM:
    """A Qwen2 of two layers, saved in the folder; large initial weights, so that its distributions are uneven."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
            Qwen2Config(
                vocab_size=VOCAB,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=WINDOW,
                tie_word_embeddings=tied,
                eos_token_id=EOS,
                initializer_range=0.1,
            )
        )
    model.save_pretrained(folder)
    served: Qwen2ForCausalLM = model.eval()
    return served


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Random prompts without the stop id."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def forward_logits(model: Qwen2ForCausalLM, prompt: list[int], sampled: list[int]) -> torch.Tensor:
    """Plain forward pass: the logits [len(sampled), V] that predict each sampled id."""
    logits: torch.Tensor = model(torch.tensor([prompt + sampled])).logits[0]
    return logits[len(prompt) - 1 : -1]


def picked(logprobs: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """The entries [N] of ids in logprobs [N, V]."""
    return logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]
