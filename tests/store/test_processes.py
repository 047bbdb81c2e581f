"""Several processes and one queue: each group is leased once, re-issued when its worker is gone, claimed once."""

from __future__ import annotations

import subprocess
import sys
import time

from agentrl.store import Store
from agentrl.types import GroupState, StopReason
from tests.store.builders import completed, leased, planned, record, start_run, trajectory

FORKS = """
import asyncio, os, sys
from agentrl.errors import StoreError
from agentrl.store import Store

def tell(*words):
    os.write(1, (" ".join(words) + "\\n").encode())  # one write: print makes several where output isn't buffered

async def lease(store, run, me):
    while taken := await store.queue.lease(me, 60.0, run=run, limit=3):
        for one in taken:
            tell(me, one.group)
        await asyncio.sleep(0.05)  # the others' turn

async def claim(store, run, me):
    step = await store.begin_step(run, ordinal=0, version=0)
    for group in store.queue.groups(run):
        try:
            await store.queue.claim(run, step, [group])
        except StoreError:
            continue
        tell(me, group)

async def main(work, target, run, me):
    with Store.open(target) as store:
        os.close(ready[1])
        os.read(start[0], 1)
        await {"lease": lease, "claim": claim}[work](store, run, me)

ready, start, children = os.pipe(), os.pipe(), []
for number in range(6):  # forked before anything is open
    child = os.fork()
    if child == 0:
        os.close(start[1])
        asyncio.run(main(*sys.argv[1:4], f"p{number}"))
        os._exit(0)
    children.append(child)
os.close(ready[1])
os.read(ready[0], 1)  # until all are there, or have ended
os.close(start[1])
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""
HOLDER = """
import asyncio, sys
from agentrl.store import Store
from tests.store.builders import record, trajectory

async def main():
    with Store.open(sys.argv[1]) as store:
        [lease] = await store.queue.lease("holder", 4.0, run=sys.argv[2])
        await record(store, trajectory(sys.argv[2], lease.group, id="done"), lease.generation)
        await store.recorder.begin(trajectory(sys.argv[2], lease.group, id="cut", sample=1), lease.generation)
        print(lease.group, flush=True)
        while True:
            await store.queue.heartbeat(lease, 4.0)
            await asyncio.sleep(0.1)

asyncio.run(main())
"""


def told(work: str, target: str, run: str) -> list[tuple[str, str]]:
    """(process, group) as the processes printed it."""
    command = [sys.executable, "-c", FORKS, work, target, run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    return [(process, group) for process, group in (line.split() for line in done.stdout.splitlines())]


async def test_each_group_is_leased_by_one_process(target: str) -> None:
    with Store.open(target) as store:
        run = await start_run(store)
        groups = [await planned(store, run, ordinal) for ordinal in range(60)]
    leases = told("lease", target, run)
    assert sorted(group for _, group in leases) == sorted(groups)
    assert len({process for process, _ in leases}) > 1


async def test_each_group_is_claimed_by_one_process(target: str) -> None:
    with Store.open(target) as store:
        run = await start_run(store)
        groups = [await completed(store, run, ordinal) for ordinal in range(20)]
    assert sorted(group for _, group in told("claim", target, run)) == sorted(groups)
    with Store.open(target) as store:
        assert store.queue.claimable(run) == []
        assert len(store.steps(run)) == 6  # ids that were handed out at once, and none twice


async def test_a_group_is_reissued_once_its_worker_is_gone_and_not_before(target: str) -> None:
    with Store.open(target) as store:
        run = await start_run(store)
        group = await planned(store, run)
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, target, run], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None and holder.stdout.readline().strip() == group
        time.sleep(4.5)  # longer than the lease, which is kept
        assert await store.queue.lease("other", 60.0, run=run) == []
        holder.kill()
        holder.wait()
        holder.stdout.close()
        deadline = time.monotonic() + 60
        while not (leases := await store.queue.lease("other", 60.0, run=run)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert [(lease.group, lease.generation, lease.reissue) for lease in leases] == [(group, 2, 1)]
        assert store.load_trajectory("done").stop_reason is StopReason.COMPLETED
        assert store.load_trajectory("cut").stop_reason is StopReason.LOST
        await record(store, trajectory(run, group, sample=1, reissue=1), leases[0].generation)
        await store.queue.complete(leases[0])
        assert store.load_group(group).state is GroupState.COMPLETE
        await leased(store, await planned(store, run, 1))
