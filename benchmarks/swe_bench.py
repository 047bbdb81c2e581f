"""Patches of the tasks that come along, graded in boxes: the median of a grade, and forty at once.

    python -m benchmarks.swe_bench [bubblewrap|docker|local]

First each task's gold patch by itself, then forty grades at once, half of them of patches that solve nothing. None may
be mixed up or lost. Ends with one JSON line; `value` is the median in seconds of a grade by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentrl.config_sandbox import SandboxConfig
from agentrl.environment import EnvironmentContext
from agentrl.envs.swe_bench.environment import PATCH, SweBench, SweBenchConfig, swe_task
from agentrl.rollout.boxes import Boxes
from agentrl.types import Artifacts, Task, Trajectory
from benchmarks import report

TIME_S, NUM_AT_ONCE, TARGET_S = 600.0, 40, 2.0
SOLVES_NOTHING = b"""diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+Nothing is solved.
"""


async def reward(boxes: Boxes, task: Task, patch: bytes, seconds: list[float]) -> float:
    """Of a patch that was collected; the time is that of the grade with its box."""
    spec = SweBench.grading_sandbox(task)
    assert spec is not None
    started = time.monotonic()
    box = await boxes.take(spec, hold_s=TIME_S)
    try:
        ctx = EnvironmentContext(sandbox=box, seed=0, deadline=time.monotonic() + TIME_S)
        trajectory = Trajectory(id="benchmark", run="benchmark", task=task, group=None)
        data = {"baseline": None, "submitted": True, "problem": None, "too_large": False, "reward": "resolved"}
        artifacts = Artifacts(data=data | {"grade_unsubmitted": True}, files={PATCH: patch})
        grade = await SweBench.grade(task, trajectory, artifacts, ctx)
    finally:
        await box.stop()
    seconds.append(time.monotonic() - started)
    assert grade.reward is not None, grade.unmeasured
    return grade.reward


async def measure(config: SandboxConfig) -> tuple[int, float, float]:
    """(grades that are wrong, median seconds of one by itself, seconds of forty at once)."""
    options = SweBenchConfig(memory_bytes=1024**3, disk_bytes=256 * 1024**2)
    tasks = [task for split in ("train", "held_out") for task in SweBench.tasks(options, split)]
    gold = [swe_task(task).gold_patch.encode() for task in tasks]
    seconds: list[float] = []
    async with Boxes(config, run="benchmark") as boxes:
        alone = [await reward(boxes, task, patch, seconds) for task, patch in zip(tasks, gold, strict=True)]
        chosen = [(number % len(tasks), number % 2 == 0) for number in range(NUM_AT_ONCE)]
        started = time.monotonic()
        together = await asyncio.gather(
            *(reward(boxes, tasks[n], gold[n] if right else SOLVES_NOTHING, []) for n, right in chosen)
        )
        total_s = time.monotonic() - started
    num_wrong = sum(each != 1.0 for each in alone)
    num_wrong += sum(each != float(right) for each, (_, right) in zip(together, chosen, strict=True))
    return num_wrong, statistics.median(seconds), total_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", nargs="?", default="bubblewrap")
    arguments = parser.parse_args()
    unsafe = {"unsafe": True} if arguments.backend == "local" else {}
    config = SandboxConfig(backend=arguments.backend, options=unsafe, max_boxes=4, warm=0)
    num_wrong, median_s, total_s = asyncio.run(measure(config))
    print(f"{NUM_AT_ONCE} grades at once in {total_s:.0f} s, {num_wrong} grades are not as they should be")
    name, is_fine = f"swe_bench, seconds of a grade ({arguments.backend})", num_wrong == 0 and median_s <= TARGET_S
    return 0 if report(name, round(median_s, 2), f"{TARGET_S:g} s, none mixed up", is_fine) else 1


if __name__ == "__main__":
    sys.exit(main())
