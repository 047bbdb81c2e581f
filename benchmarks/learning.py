"""`agentrl train --env calculator` on embedded defaults: from at most 0.5 to at least 0.9 held-out, within 10 minutes.

Two controls: with the rewards shuffled within each group nothing may be learnt (--control), and with a tool that
answers wrong the trained model must fail, because it listens to it (measured after each training).

    python -m benchmarks.learning [--seeds 0 1 2] [--control] [-- key=value ...]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import agentrl, report

MAX_SECONDS = 600
TARGET = f"before <= 0.5, after >= 0.9, lied_to <= 0.2, seconds <= {MAX_SECONDS}"


def run(folder: Path, name: str, command: str, *overrides: str) -> tuple[dict[str, Any], float]:
    """(summary.json, seconds of the whole command, the warm start included)."""
    place = [f"runs_dir={folder}", f"model.cache_dir={folder}/cache", f"name={name}"]
    started = time.monotonic()
    agentrl(command, "--env", "calculator", *place, *overrides)
    seconds = time.monotonic() - started
    return json.loads((folder / name / "summary.json").read_text()), seconds


def learn(folder: Path, seed: int, overrides: list[str]) -> tuple[dict[str, float], bool]:
    """Train, then lie to the trained model: (figures, whether they reach the targets)."""
    summary, seconds = run(folder, "train", "train", f"seed={seed}", *overrides)
    checkpoint = summary["paths"]["checkpoint"]
    lied_to, _ = run(folder, "lie", "eval", f"model.path={checkpoint}", "env.lying=true", "eval.sampled=false")
    before, after = summary["held_out_before"], summary["held_out_after"]
    value = {"seed": seed, "before": before, "after": after, "lied_to": lied_to["held_out_before"]}
    value |= {"sampled_before": summary["sampled_before"], "sampled_after": summary["sampled_after"]}
    value |= {"seconds": round(seconds)}
    ok = before <= 0.5 and after >= 0.9 and value["lied_to"] <= 0.2
    return value, ok and seconds <= MAX_SECONDS and summary["num_held_out_tasks"] >= 300


def control(folder: Path, seed: int, overrides: list[str]) -> tuple[dict[str, float], bool]:
    """Train on shuffled rewards: (figures, whether nothing was learnt)."""
    summary, seconds = run(folder, "train", "train", f"seed={seed}", "algorithm.shuffle_rewards=true", *overrides)
    before, after = summary["held_out_before"], summary["held_out_after"]
    return {"seed": seed, "before": before, "after": after, "seconds": round(seconds)}, after <= before + 0.1


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", action="store_true", help="shuffle the rewards within groups")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    measure, name = (control, "learning_control") if options.control else (learn, "learning")
    target = "after <= before + 0.1" if options.control else TARGET
    all_ok = True
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            value, ok = measure(Path(folder), seed, options.overrides)
        all_ok = report(name, value, target, ok) and all_ok
    return all_ok


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
