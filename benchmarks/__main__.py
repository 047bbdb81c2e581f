"""`make bench`: every benchmark, one after the other."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    ["benchmarks.gradient"],
    ["benchmarks.memory"],
    ["benchmarks.parity"],
    ["benchmarks.render"],
    ["benchmarks.store"],
    ["benchmarks.store_share"],
    ["benchmarks.view"],
    ["benchmarks.view_browser"],
    ["benchmarks.loop"],
    ["benchmarks.loop", "--concurrency", "4000", "--rollouts", "8000"],
    ["benchmarks.sandbox", "bubblewrap"],
    ["benchmarks.sandbox", "docker", "--image", "agentrl-test:1"],
    ["benchmarks.sandbox_docker"],
    ["benchmarks.code_tests", "bubblewrap"],
    ["benchmarks.swe_bench", "bubblewrap"],
    ["benchmarks.faults"],
    ["benchmarks.vllm_faults"],
    ["benchmarks.publish"],
    ["benchmarks.learning", "--seeds", "0", "1", "2"],
    ["benchmarks.learning", "--control"],
    ["benchmarks.vllm_parity"],
    ["benchmarks.learning", "--seeds", "0", "1", "2", "--", "engine=vllm"],
)


def main() -> int:
    failed = [name for name in BENCHMARKS if subprocess.run([sys.executable, "-m", *name]).returncode != 0]
    for name in failed:
        print(f"missed its target: {' '.join(name)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
