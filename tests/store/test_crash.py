"""What was finished before kill -9 is there afterwards (S1)."""

from __future__ import annotations

import subprocess
import sys

from agentrl.store import Store
from agentrl.types import StopReason
from tests.store.builders import sql, turn

PROCESS = """
import asyncio, sys
from agentrl.store import Store
from tests.store.builders import leased, planned, record, start_run, trajectory

async def rollouts(store, run, group, lease, name):
    for sample in range(10**6):
        rollout = trajectory(run, group, id=f"{name}-{sample}", sample=sample)
        grade_id = await record(store, rollout, lease.generation, num_turns=3)
        print(rollout.id, grade_id, flush=True)

async def main():
    with Store.open(sys.argv[1]) as store:
        run = await start_run(store)
        calls = []
        for name in range(8):
            group = await planned(store, run, name, size=10**6)
            calls.append(rollouts(store, run, group, await leased(store, group, "killed"), f"w{name}"))
        await asyncio.gather(*calls)

asyncio.run(main())
"""


async def test_kill_leaves_every_finished_trajectory_readable(target: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROCESS, target], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reported = [process.stdout.readline().split() for _ in range(60)]
    process.kill()
    # A line that the kill cut short is no report.
    reported += [line.split() for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    process.wait()
    process.stdout.close()
    with Store.open(target) as store:
        for id, _ in reported:
            trajectory = store.load_trajectory(id)
            assert trajectory.stop_reason is StopReason.COMPLETED
            assert trajectory.turns == [turn(index) for index in range(3)]
        [run] = store.runs()
        grades = {s.trajectory.id: s.grade_id for g in store.queue.groups(run.id) for s in store.load_group(g).samples}
        assert all(grades[id] == int(grade_id) for id, grade_id in reported)
        await check_reissue(store)
    if "://" not in target:
        assert sql(target, "pragma integrity_check") == [("ok",)]


async def check_reissue(store: Store) -> None:
    """The killed owner comes back: what was in flight ends as lost, so that every rollout has an ending (R1)."""
    [run] = store.runs()
    leases = await store.queue.lease("killed", 60.0, groups=store.queue.groups(run.id))
    assert [(lease.generation, lease.reissue) for lease in leases] == [(2, 1)] * 8
    assert store.find_trajectories(stop_reason="running") == []
    assert {one.stop_reason for one in store.find_trajectories()} <= {StopReason.COMPLETED, StopReason.LOST}
