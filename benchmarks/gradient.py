"""How far the trainer's gradient is from plain autograd's on padded sequences (G1), and how fast it trains.

    python benchmarks/gradient.py [--no-speed]

The reference (tests/train/builders.py) shares nothing with the trainer: every turn in its own context, padded, full
logits. Ends with one JSON line; `ok` is for both types, `value` the distance in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.batch.rows import Row
from agentrl.train.policy import Policy
from tests.train import builders

TARGETS = {torch.float64: 1e-10, torch.float32: 1e-5}
TARGET_TOKENS_PER_S = 4000


def worst_distance(dtype: torch.dtype) -> float:
    """The largest relative L2 distance over models, aggregations, branching and micro-batch splits; prints each."""
    worst = 0.0
    configs = {
        "qwen2-tied": builders.qwen2_config(),
        "qwen2-untied": builders.qwen2_config(tie_word_embeddings=False),
        "gpt2": builders.gpt2_config(),
    }
    for name, config in configs.items():
        with builders.exact_norm(), builders.make_policy(config, dtype=dtype, logprob_chunk_tokens=16) as policy:
            for aggregation in ("token", "trajectory"):
                for branching in (False, True):
                    groups = builders.make_groups(3, branching=branching)
                    rows = builders.make_rows(groups)
                    _, expected = builders.plain_gradient(policy, groups, aggregation)
                    distances = []
                    for budget in (1, 40, 100, 10_000):
                        trainer = builders.make_trainer(policy, aggregation, micro_batch_tokens=budget)
                        _, gradient = builders.our_gradient(trainer, rows)
                        distances.append(builders.relative_distance(gradient, expected))
                    worst = max(worst, *distances)
                    kind = "branches" if branching else "append"
                    figures = "  ".join(f"{distance:.1e}" for distance in distances)
                    print(f"{str(dtype)[6:]:8} {name:13} {aggregation:11} {kind:9} {figures}")
    return worst


def tokens_per_second(num_threads: int = 2) -> float:
    """Ids of Rows per second of a training step: Qwen2, vocabulary 512, width 192, 4 layers, micro-batches of 1024."""
    config = builders.qwen2_config(
        vocab_size=512, hidden_size=192, intermediate_size=768, num_hidden_layers=4, num_attention_heads=6,
        max_position_embeddings=1024, initializer_range=0.02,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    rows = [_row(i, int(generator.integers(60, 300)), generator) for i in range(64)]
    with Policy.random(config, 0, device="cpu", threads=num_threads) as policy:
        trainer = builders.make_trainer(policy, micro_batch_tokens=1024)
        trainer.step(rows[:8], 0)
        best = 0.0
        for ordinal in range(3):
            started = time.perf_counter()
            trainer.step(rows, ordinal)
            best = max(best, sum(map(len, rows)) / (time.perf_counter() - started))
    return best


def _row(number: int, length: int, generator: np.random.Generator) -> Row:
    """A Row of random ids, half of them sampled."""
    mask = (generator.random(length) < 0.5).astype(np.int8)
    mask[:2] = [0, 1]
    row = Row(
        trajectory=str(number),
        end_turn=0,
        group="g",
        grade_id=None,
        ids=generator.integers(0, 512, length),
        mask=mask,
        weights=mask.astype(np.float64),
        logprobs=np.where(mask == 1, -6.0, np.nan),
        versions=np.where(mask == 1, 0, -1),
        temperature=np.ones(length),
        turn_index=np.zeros(length, dtype=np.int64),
        rewards=np.zeros(length),
        advantages=np.zeros(length),
        proximal=np.full(length, np.nan),
    )
    row.advantage = float(generator.normal())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-speed", action="store_true", help="only the gradient, which no other load disturbs")
    arguments = parser.parse_args()
    print("relative L2 distance of the gradient; micro-batches of 1, 40, 100 and 10000 tokens")
    worst = {dtype: worst_distance(dtype) for dtype in TARGETS}
    for dtype, value in worst.items():
        print(f"worst in {str(dtype)[6:]}: {value:.1e} (at most {TARGETS[dtype]:.0e})")
    if not arguments.no_speed:
        print(f"training: {tokens_per_second():.0f} tokens/s on 2 threads (at least {TARGET_TOKENS_PER_S})")
    result = {
        "name": "gradient_relative_l2_float64",
        "value": worst[torch.float64],
        "target": TARGETS[torch.float64],
        "ok": all(value <= TARGETS[dtype] for dtype, value in worst.items()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
