"""AgentLoop against an endpoint in another process that answers at once: what the loop itself costs.

256 concurrent rollouts of 4 turns with a tool call each (the last turn answers), everything on: render, parse, tool,
SQLite through the run's recorder. The yardstick is bare httpx over aiohttp, which posts the very bodies that the loop
posted, at the same concurrency, in the same run.

    python -m benchmarks.loop [--rollouts N] [--concurrency N] [--profile FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from httpx_aiohttp import AiohttpTransport

from agentrl.config import LimitsConfig, RolloutConfig, SamplingConfig
from agentrl.envs.calculator import Calculator, CalculatorConfig
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.parsers import make_parser
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.process import collector_spared, require_open_files
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.store.store import Store
from agentrl.train.tiny import build_tokenizer
from agentrl.types import Message, Purpose, Task, ToolCall
from benchmarks import report

NUM_TURNS = 4
TARGET_RATIO = 0.4
GENERATE = "/inference/v1/generate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One side of the comparison."""

    turns_per_s: float
    cpu_ms_per_turn: float


@contextmanager
def endpoint(*options: str) -> Iterator[tuple[str, str]]:
    """(url, key) of a scripted endpoint in a process of its own."""
    command = [sys.executable, "-m", "agentrl.testing.endpoint", "--max-model-len", "4096", *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdin is not None
    try:
        where = json.loads(process.stdout.readline())
        yield where["url"], where["key"]
    finally:
        process.stdin.close()
        process.wait(10)


def replies(renderer: Renderer) -> list[list[int]]:
    """Three tool calls and an answer, as ids."""
    call = ToolCall(id="call_0", name="calculator", arguments='{"expression": "17 * 3"}')
    calling = Message(role="assistant", content="I use the calculator.", tool_calls=[call])
    answer = Message(role="assistant", content="Answer: 51")
    return [renderer.encode_reply(message) for message in [calling] * (NUM_TURNS - 1) + [answer]]


def make_renderer(tasks: Sequence[Task]) -> Renderer:
    """The tiny model's template, with a tokenizer that knows the environment's words."""
    texts = [message.text for task in tasks for message in task.messages]
    texts.append(make_parser("hermes").write(Message(role="assistant", content="I use the calculator. Answer: 51")))
    return Renderer(build_tokenizer(texts))


class Wire:
    """A client that keeps the bodies which it posts."""

    def __init__(self, inner: HttpClient) -> None:
        self.inner = inner
        self.bodies: list[bytes] = []

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Any:
        body = self.inner._body(ids, sampling) | {"request_id": request_id}
        self.bodies.append(json.dumps(body).encode())
        return await self.inner.generate(ids, sampling, request_id)


async def play(
    store: Store, client: Any, renderer: Renderer, tasks: Sequence[Task], concurrency: int
) -> tuple[Measured, Counter[str]]:
    """One rollout per task, as a run plays them: planned, leased, stored, graded, completed."""
    run = await store.create_run("loop", {})
    await store.add_version(run, parent=None, step=None, weights_hash="", ordinal=0)
    ids = await asyncio.gather(
        *(store.queue.plan(run, task, purpose=Purpose.COLLECT, ordinal=n, size=1) for n, task in enumerate(tasks))
    )
    leases = await store.queue.lease(run, 600, groups=ids)
    groups = [store.load_group(id) for id in ids]
    sampler = EngineSampler(client)
    loop = AgentLoop(
        env_class=Calculator,
        env_config=CalculatorConfig(),
        sampler=lambda env, trajectory: sampler,
        renderer=renderer,
        recorder=store.recorder,
        limits=LimitsConfig(),
        sampling=SamplingConfig(),
        window=4096,
    )
    pool = RolloutPool(loop, RolloutConfig(concurrency=concurrency), run_seed=0)
    with measuring(len(tasks) * NUM_TURNS) as measured:
        played = await pool.run(groups)
    await asyncio.gather(*(store.queue.complete(lease) for lease in leases))
    endings = Counter(str(sample.trajectory.stop_reason) for group in played for sample in group.samples)
    turns = sum(len(sample.trajectory.turns) for group in played for sample in group.samples)
    assert turns == len(tasks) * NUM_TURNS, f"{turns} turns were played"
    return measured[0], endings


async def bare(url: str, key: str, bodies: Sequence[bytes], concurrency: int) -> Measured:
    """httpx over aiohttp posts the bodies and reads the JSON; nothing else."""
    transport = AiohttpTransport(limits=httpx.Limits(max_connections=0, keepalive_expiry=15.0), trust_env=False)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    rest = iter(bodies)

    async def post(http: httpx.AsyncClient) -> None:
        for body in rest:
            answer = (await http.post(url + GENERATE, content=body)).json()
            assert answer["choices"]

    async with httpx.AsyncClient(transport=transport, headers=headers, timeout=120, trust_env=False) as http:
        with measuring(len(bodies)) as measured:
            await asyncio.gather(*(post(http) for _ in range(concurrency)))
    return measured[0]


@contextmanager
def measuring(num_turns: int) -> Iterator[list[Measured]]:
    """Wall and CPU time (of all threads of this process) of a block, per turn."""
    result: list[Measured] = []
    wall, cpu = time.perf_counter(), time.process_time()
    yield result
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    result.append(Measured(turns_per_s=num_turns / wall, cpu_ms_per_turn=1000 * cpu / num_turns))


async def compare(options: argparse.Namespace) -> bool:
    tasks = list(Calculator.tasks(CalculatorConfig(train_tasks=512), "train"))
    tasks = [tasks[i % len(tasks)].model_copy(update={"id": str(i)}) for i in range(options.rollouts)]
    renderer = make_renderer(tasks[:512])
    require_open_files(options.concurrency)
    load = os.getloadavg()[0]
    with (
        collector_spared(),  # as in a run; the yardstick profits as much
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder) / "loop.db") as store,
        endpoint("--replies", json.dumps(replies(renderer))) as (url, key),
    ):
        async with HttpClient(url, key=key) as client:
            wire = Wire(client)
            await play(store, wire, renderer, tasks[:256], options.concurrency)  # warm up, and note the bodies
            bodies = (wire.bodies * (len(tasks) // 256 + 1))[: len(tasks) * NUM_TURNS]
            profiler = cProfile.Profile()
            bares, loops = [], []
            for _ in range(options.rounds):  # in turns, so that both see the same load
                bares.append(await bare(url, key, bodies, options.concurrency))
                with profiler if options.profile else nullcontext():
                    measured, endings = await play(store, client, renderer, tasks, options.concurrency)
                loops.append(measured)
            if options.profile:
                profiler.dump_stats(options.profile)
    best, ours = (max(rounds, key=lambda measured: measured.turns_per_s) for rounds in (bares, loops))
    ratio = ours.turns_per_s / best.turns_per_s
    print(f"bare httpx over aiohttp: {best.turns_per_s:.0f} requests/s, {best.cpu_ms_per_turn:.2f} ms of CPU each")
    print(f"AgentLoop: {ours.turns_per_s:.0f} turns/s, {ours.cpu_ms_per_turn:.2f} ms of CPU a turn")
    print(f"load before: {load:.1f}; endings: {dict(endings)}")
    value = {
        "ratio": round(ratio, 3),
        "turns_per_s": round(ours.turns_per_s),
        "cpu_ms_per_turn": round(ours.cpu_ms_per_turn, 2),
        "bare_per_s": round(best.turns_per_s),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "load": round(load, 1),
    }
    finished = endings == {"completed": len(tasks)}
    if options.concurrency > 1000:
        return report("loop_many", value, "all finish", finished)
    return report("loop", value, f"ratio >= {TARGET_RATIO}", finished and ratio >= TARGET_RATIO)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2048)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3, help="the best of each side counts")
    parser.add_argument("--profile", help="write a cProfile of the loop's thread here (it slows it down)")
    return asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
