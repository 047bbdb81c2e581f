"""`agentrl train --env calculator` on embedded defaults: from at most 0.5 to at least 0.9 held-out, within 10 minutes.

The control shuffles the rewards within each group: nothing may be learnt from it.

    python -m benchmarks.learning [--control] [key=value ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report

MAX_SECONDS = 600


def agentrl(command: str, *overrides: str) -> None:
    """Run one command on the calculator in a process of its own. Raises CalledProcessError if it fails."""
    code = "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, command, "--env", "calculator", *overrides], check=True)


def train(folder: Path, overrides: list[str]) -> tuple[dict[str, Any], float]:
    """(summary.json, seconds of the whole command, the warm start included)."""
    started = time.monotonic()
    agentrl("train", f"runs_dir={folder}", f"model.cache_dir={folder}/cache", "name=bench", *overrides)
    seconds = time.monotonic() - started
    return json.loads((folder / "bench" / "summary.json").read_text()), seconds


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", action="store_true", help="shuffle the rewards within groups")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    control = ["algorithm.shuffle_rewards=true"] if options.control else []
    with tempfile.TemporaryDirectory() as folder:
        summary, seconds = train(Path(folder), [*control, *options.overrides])
    before, after = summary["held_out_before"], summary["held_out_after"]
    value = {"before": before, "after": after, "seconds": round(seconds)}
    value |= {"sampled_before": summary["sampled_before"], "sampled_after": summary["sampled_after"]}
    if options.control:
        return report("learning_control", value, "after <= before + 0.1", after <= before + 0.1)
    ok = before <= 0.5 and after >= 0.9 and seconds <= MAX_SECONDS and summary["num_held_out_tasks"] >= 300
    return report("learning", value, f"before <= 0.5, after >= 0.9, seconds <= {MAX_SECONDS}", ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
