"""A real pretrained model on the calculator: 20 GRPO steps of SmolLM2-135M-Instruct on a CPU, and what they show.

As it comes from the package, or after a short warm start on demonstrations. There is no target for the reward; what
is asked for is that 20 steps run, that sampler and trainer agree, and that no update is skipped.

    python -m benchmarks.smollm2 [--warm-start] [--curve FILE.png] [key=value ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import agentrl, report

STEPS = 20
TARGET = 1e-4
SMALL = [
    "model=smollm2", "env.level=1", "env.max_operand=10", "limits.max_turns=3", "limits.max_turn_tokens=48",
    f"train.steps={STEPS}", "train.learning_rate=1e-5", "train.warmup_steps=2", "train.micro_batch_tokens=1024",
    "algorithm.groups_per_step=2", "algorithm.group_size=4", "eval.tasks=16", "eval.sampled=false",
]  # fmt: skip
WARM_PROBLEMS = ["env.level=2"]
"""With one operation per problem the warm start alone solves nearly everything, and nothing is left to learn."""
WARM_START = [
    "sft.demonstrations=64", "sft.steps=16", "sft.batch_size=4", "sft.optimizer=adamw", "sft.learning_rate=1e-4",
    "sft.warmup_steps=2",
]  # fmt: skip


def steps_of(run: Path) -> list[dict[str, Any]]:
    """The records of a run's steps."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "step"]


def figures(steps: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, float]:
    """The numbers for the docs, from the metrics of the steps."""
    trained = [step for step in steps if step["num_updates"]]
    rewards = [step["reward_mean"] for step in steps]
    half = len(rewards) // 2
    # The tokens of the Rows that were trained on; the time is of the whole phase, scoring included.
    seconds = {name: sum(step["seconds"][name] for step in steps) for name in ("rollout", "train", "sync")}
    tokens = sum(step["num_row_tokens"] for step in trained)
    return {
        "held_out_before": summary["held_out_before"],
        "held_out_after": summary["held_out_after"],
        "reward_first_half": sum(rewards[:half]) / half,
        "reward_second_half": sum(rewards[half:]) / (len(rewards) - half),
        "steps_with_update": len(trained),
        "max_mismatch_nats": max(step["mismatch_logprob_max"] for step in steps),
        "trained_tokens": tokens,
        **({"training_tokens_per_s": tokens / seconds["train"]} if tokens else {}),
        "sampled_tokens_per_s": sum(step["num_sampled_tokens"] for step in steps) / seconds["rollout"],
        **{f"{name}_s": value for name, value in seconds.items()},
    }


def measure(folder: Path, warm_start: bool, overrides: list[str]) -> tuple[Path, dict[str, Any]]:
    """(the run's folder, summary.json)."""
    settings = [f"runs_dir={folder}", *SMALL, *(WARM_PROBLEMS if warm_start else []), *overrides]
    if warm_start:
        agentrl("sft", "--env", "calculator", *settings, *WARM_START, "name=start")
        settings += [f"model.path={folder}/start/checkpoints/step-16"]
    agentrl("train", "--env", "calculator", *settings, "name=bench")
    return folder / "bench", json.loads((folder / "bench" / "summary.json").read_text())


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-start", action="store_true", help="imitate 64 demonstrations first")
    parser.add_argument("--curve", metavar="FILE.png", help="keep the picture of the rewards there")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, summary = measure(Path(folder), options.warm_start, options.overrides)
        steps = steps_of(run)
        if options.curve:
            shutil.copyfile(summary["paths"]["curve"], options.curve)
    print("reward per step:", " ".join(f"{step['reward_mean']:.2f}" for step in steps))
    value = figures(steps, summary)
    ok = value["max_mismatch_nats"] <= TARGET and not any(step["skipped_updates"] for step in steps)
    name = "smollm2_warm" if options.warm_start else "smollm2"
    return report(name, {k: round(v, 6) for k, v in value.items()}, f"max_mismatch_nats <= {TARGET}, no skipped", ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
