"""How long the pages of `agentrl view` take: on a database of a million turns, and for one very long trajectory.

Pages are asked of the app in this process, so what is measured is the server's part: queries, templates, escaping. Each
kind of page is asked for with many ids, none twice. The long trajectory has 200 turns and 100,000 ids; it is timed as a
page, and as the tokens of each of its turns, which a browser asks for when they come into sight.

    python -m benchmarks.view [--turns N] [--folder FOLDER]

A database that lies in FOLDER already (benchmarks.store makes the same) is used as it is. Ends with one JSON line per
figure.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from agentrl.store import Store
from agentrl.types import Grade, Message, Sample, Sampler, StopReason, Trajectory, Turn
from agentrl.view.app import make_app
from agentrl.view.viewer import Viewer
from benchmarks import report
from benchmarks.store import Clock, Maker, fill

LONG_TURNS, LONG_PROMPT_IDS, LONG_SAMPLED_IDS = 200, 300, 200
LONG = "long"
"""The run of the long trajectory."""
SEARCHES = ("min_reward=0.5", "stop_reason=max_turns", "call=failed", "version=1")
TIMES = 15
"""Pages of each kind."""


async def add_long(store: Store) -> str:
    """The id of the long trajectory, which is made where it isn't there."""
    known = [run.id for run in store.runs() if run.name == LONG]
    if known:
        return store.find_trajectories(run=known[0])[0].id
    run, maker = await store.create_run(LONG, {}), Maker(1)
    one = Trajectory(
        id="long0000", run=run, task=maker.task(0, 0), group=None, started_at=1e9, finished_at=1e9 + LONG_TURNS,
        stop_reason=StopReason.COMPLETED,
    )  # fmt: skip
    one.turns = [_long_turn(maker, index) for index in range(LONG_TURNS)]
    await store.recorder.add_finished([Sample(trajectory=one, grade=Grade(reward=1.0))])
    return one.id


def _long_turn(maker: Maker, index: int) -> Turn:
    """Scripted, so that no engine has to be named for its ids."""
    return Turn(
        index=index, parent=index - 1 if index else None, keep=index * (LONG_PROMPT_IDS + LONG_SAMPLED_IDS),
        prompt_ids=maker.ids(LONG_PROMPT_IDS), sampled_ids=maker.ids(LONG_SAMPLED_IDS),
        logprobs=maker.logprobs(LONG_SAMPLED_IDS), calls=[], sampler=Sampler.SCRIPTED,
        started_at=1e9 + index, timings={"sample": 0.5},
        prompt_messages=[Message(role="user", content=maker.text(1200))],
        message=Message(role="assistant", content=maker.text(800)),
    )  # fmt: skip


def pages(store: Store) -> dict[str, list[str]]:
    """Addresses by kind of page."""
    draw, runs = random.Random(0), [run.id for run in store.runs() if run.name != LONG]
    steps = [(run, step.id) for run in runs for step in store.steps(run)]
    groups = [group for run in runs for group in store.queue.groups(run)]
    ids = [one.id for one in draw.sample(store.find_trajectories(run=runs[0]), TIMES)]
    return {
        "runs": ["/"] * TIMES,
        "run": [f"/run/{run}" for run in runs],
        "compare": [f"/compare?run={runs[0]}&run={runs[1]}"] * 3,
        "step": [f"/step/{step}/{run}" for run, step in draw.sample(steps, min(TIMES, len(steps)))],
        "group": [f"/group/{group}" for group in draw.sample(groups, TIMES)],
        "trajectory": [f"/trajectory/{id}" for id in ids],
        "search": ["/search", *(f"/search?run={run}&{more}" for run in runs for more in SEARCHES)],
        "health": ["/health", *(f"/health?run={run}" for run in runs)],
        "tokens": [f"/tokens/{place % 8}/{id}?part=1" for place, id in enumerate(ids)],
        "changed": [f"/changed/run/{run}" for run in runs],
    }


async def seconds(client: httpx.AsyncClient, addresses: Sequence[str]) -> tuple[float, float]:
    """(wall, CPU): medians. Raises HTTPStatusError for a page that isn't there."""
    walls, cpus = [], []
    for address in addresses:
        clock = Clock()
        with clock.running():
            answer = await client.get(address)
        walls.append(clock.wall_s)
        cpus.append(clock.cpu_s)
        answer.raise_for_status()
    return statistics.median(walls), statistics.median(cpus)


async def measure(store: Store, addresses: dict[str, list[str]], long_id: str) -> bool:
    app = make_app(Viewer(store=store, database=store.location), "token")
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", follow_redirects=True) as client:
        await client.get("/?token=token")
        spent = {kind: await seconds(client, them) for kind, them in addresses.items()}
        page = await seconds(client, [f"/trajectory/{long_id}"] * 5)
        tokens = await seconds(client, [f"/tokens/{turn}/{long_id}?part=1" for turn in range(0, LONG_TURNS, 20)])
    for kind, (wall, cpu) in spent.items():
        print(f"  {kind:12} {1000 * wall:8.1f} ms, {1000 * cpu:8.1f} of CPU")
    medians = {kind: round(1000 * wall, 1) for kind, (wall, _) in spent.items()}
    long = {"page": round(page[0], 3), "page_cpu": round(page[1], 3), "tokens_of_a_turn": round(tokens[0], 3)}
    load = {"load": round(os.getloadavg()[0], 1)}
    oks = [
        report("view_page_ms", medians | load, "each median <= 200", max(medians.values()) <= 200),
        report("view_long_trajectory_s", long | load, "page <= 1", long["page"] <= 1),
    ]
    return all(oks)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where the database lies, or is to be kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(options.folder or folder) / "store.db"
        is_there = path.is_file()
        with Store.open(path) as store:
            if not is_there:
                asyncio.run(fill(store, options.turns))
            long_id = asyncio.run(add_long(store))
        with Store.open(path, read_only=True) as store:
            addresses = pages(store)
        gc.collect()  # what the search for pages has left is not the viewer's
        with Store.open(path, read_only=True) as store:
            return asyncio.run(measure(store, addresses, long_id))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
