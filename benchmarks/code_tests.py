"""Every task of HumanEval: the canonical solution gets 1.0, an empty one and one that returns nothing get 0.

    python -m benchmarks.code_tests [bubblewrap|docker|local] [--image IMAGE]

Each is graded as in a run, in a box of its own. Ends with one JSON line; `value` is the number of tasks of which both
hold.
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
from agentrl.envs.code_tests import CodeTests, CodeTestsConfig
from agentrl.rollout.boxes import Boxes
from agentrl.types import Artifacts, Task, Trajectory
from benchmarks import report

TIME_S = 120.0


async def reward(boxes: Boxes, task: Task, code: str) -> float:
    """Of code that was handed in."""
    spec = CodeTests.grading_sandbox(task)
    assert spec is not None
    box = await boxes.take(spec, hold_s=TIME_S)
    try:
        ctx = EnvironmentContext(sandbox=box, seed=0, deadline=time.monotonic() + TIME_S)
        trajectory = Trajectory(id="benchmark", run="benchmark", task=task, group=None)
        artifacts = Artifacts(data={"code": code, "reward": "binary", "test_timeout_s": 20.0})
        grade = await CodeTests.grade(task, trajectory, artifacts, ctx)
    finally:
        await box.stop()
    assert grade.reward is not None, grade.unmeasured
    return grade.reward


async def measure(boxes: Boxes, task: Task, seconds: list[float]) -> bool:
    """Is this task graded as it should be?"""
    started = time.monotonic()
    solved = await reward(boxes, task, str(task.data["canonical_solution"]))
    seconds.append(time.monotonic() - started)
    lazy = f"def {task.data['entry_point']}(*arguments):\n    pass\n"
    rewards = [solved, await reward(boxes, task, ""), await reward(boxes, task, lazy)]
    if rewards != [1.0, 0.0, 0.0]:
        print(f"{task.id}: canonical {rewards[0]}, empty {rewards[1]}, returns nothing {rewards[2]}")
    return rewards == [1.0, 0.0, 0.0]


async def measure_all(config: SandboxConfig, image: str | None) -> tuple[int, int, float]:
    """(tasks that are graded as they should be, all, median seconds of a grade)."""
    options = CodeTestsConfig(image=image)
    tasks = [task for split in ("train", "held_out") for task in CodeTests.tasks(options, split)]
    slots, seconds = asyncio.Semaphore(config.max_boxes), list[float]()
    async with Boxes(config, run="benchmark") as boxes:

        async def one(task: Task) -> bool:
            async with slots:
                return await measure(boxes, task, seconds)

        right = await asyncio.gather(*map(one, tasks))
    return sum(right), len(tasks), statistics.median(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", nargs="?", default="bubblewrap")
    parser.add_argument("--image")
    options = parser.parse_args()
    unsafe = {"unsafe": True} if options.backend == "local" else {}
    config = SandboxConfig(backend=options.backend, options=unsafe, max_boxes=4, warm=0)
    started = time.monotonic()
    num_right, num_tasks, median_s = asyncio.run(measure_all(config, options.image))
    print(f"{num_tasks} tasks in {time.monotonic() - started:.0f} s, a grade takes {median_s:.2f} s (median)")
    name = f"code_tests graded as they should be ({options.backend})"
    return 0 if report(name, num_right, f"{num_tasks} tasks", num_right == num_tasks) else 1


if __name__ == "__main__":
    sys.exit(main())
