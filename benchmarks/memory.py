"""Peak memory of a training step with a vocabulary of 49,152, by the size of a chunk of logits.

    python -m benchmarks.memory

Counts what torch's CPU allocator hands out (exactly, other programs don't matter) above what the step began with. Ends
with one JSON line; `value` is the peak in MB with chunks of 64 tokens, the target all logits of the step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.batch.rows import Row
from tests.train import builders

VOCAB = 49_152
CHUNKS = (32, 64, 128, 100_000)
"""Tokens; the last holds all logits at once."""


def peak_bytes(rows: list[Row], chunk_tokens: int) -> int:
    """Of the second step: the first one makes the optimizer's state."""
    config = builders.qwen2_config(vocab_size=VOCAB, hidden_size=64, intermediate_size=128)
    with builders.make_policy(config, logprob_chunk_tokens=chunk_tokens) as policy:
        trainer = builders.make_trainer(policy, micro_batch_tokens=100_000)
        trainer.step(rows, 0)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            trainer.step(rows, 1)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def main() -> None:
    rows = builders.make_rows(builders.make_groups(1, num_groups=8, size=8))
    num_tokens = sum(int(row.mask.sum()) for row in rows)
    all_logits_mb = num_tokens * VOCAB * 4 / 1e6
    peaks_mb = {}
    for chunk in CHUNKS:
        peaks_mb[chunk] = peak_bytes(rows, chunk) / 1e6
        logits_mb = min(chunk, num_tokens) * VOCAB * 4 / 1e6
        print(f"chunks of {chunk:6} tokens ({logits_mb:4.0f} MB of logits): peak {peaks_mb[chunk]:4.0f} MB")
    result = {
        "name": "step_peak_mb_vocab_49152_chunk_64",
        "value": round(peaks_mb[64], 1),
        "target": round(all_logits_mb, 1),
        "ok": peaks_mb[64] <= all_logits_mb,
        "num_tokens": num_tokens,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
