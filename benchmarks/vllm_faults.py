"""A fault run against a real vLLM server: a proxy before it resets, hangs, refuses and loses replies that were sampled,
and in the middle the server is killed (SIGKILL) and started anew.

The database must then hold each planned sample once: none lost, none doubled, no reply in two turns.

    python -m benchmarks.vllm_faults [--calls 2000]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from agentrl.config import LimitsConfig, RolloutConfig, SamplingConfig
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.environment import StepResult
from agentrl.errors import EngineFault
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.samplers import EngineSampler
from agentrl.store.store import Store
from agentrl.testing.audit import audit
from agentrl.testing.endpoint_faults import Fault, FaultPlan
from agentrl.testing.proxy import FaultyProxy
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.tool import ToolResult
from agentrl.train import tiny
from agentrl.types import Message, Purpose, Sample, StopReason
from benchmarks import report

GROUP_SIZE, NUM_TURNS = 5, 4
FAULT_SHARE = 0.2
FAULTS: tuple[Fault, ...] = ("reset", "timeout", "500", "429", "lost_reply")
RETRY = RetryPolicy(max_tries=1000, wait_s=0.1, max_wait_s=5.0)
"""Outlasts a server's start."""


class Chatty(Toy):
    """Goes on whatever the reply is, until limits.max_turns. Without tools, whose description would fill the window."""

    tools = ()

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        return StepResult(messages=[Message(role="user", content="Say it again.")])


class ShortReplies(EngineSampler):
    """A model that never learnt to stop ends its replies at every eighth id of the vocabulary."""

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        stops = (*params.stop_token_ids, *range(64, 512, 8))
        return await super().sample(ids, messages, replace(params, stop_token_ids=stops), request_id)


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What became of a fault run, and what the database says."""

    num_samples: int
    num_attempts: int
    num_turns: int
    lost: int
    """Samples without an attempt that ended well."""
    doubled: int
    """Samples with two of those, and replies that are recorded in two turns."""
    problems: list[str]
    injected: dict[Fault, int]
    failed_tries: dict[EngineFault, int]
    seconds: float


async def fault_run(engine: VllmEngine, model: Path, database: Path, num_calls: int, seed: int = 0) -> Outcome:
    """Play `num_calls` turns and kill the engine's server half way; it is running again in the end."""
    size, started = num_calls // NUM_TURNS, time.monotonic()
    config = ToyConfig(num_tasks=size // GROUP_SIZE)
    plan, heard, is_half = FaultPlan(FAULT_SHARE, FAULTS, seed), list[Sample](), asyncio.Event()

    def on_sample(sample: Sample) -> None:
        heard.append(sample)
        if len(heard) >= size // 2:
            is_half.set()

    with Store.open(database) as store:
        async with (
            FaultyProxy(engine.url, fault=plan) as proxy,
            HttpClient(engine.url, key=engine.key) as direct,
            HttpClient(proxy.url, key=engine.key, name="vllm", request_timeout_s=5.0, retry=RETRY) as client,
        ):
            loop = _loop(store, model, config, client, window=direct.max_model_len or 0)
            run = await store.create_run("vllm-faults", {})
            await store.add_version(run, parent=None, step=None, weights_hash="", ordinal=0)
            ids = [
                await store.queue.plan(run, task, purpose=Purpose.COLLECT, ordinal=number, size=GROUP_SIZE)
                for number, task in enumerate(Chatty.tasks(config, "train"))
            ]
            leases = await store.queue.lease(run, 3600, groups=ids)
            pool = RolloutPool(loop, RolloutConfig(concurrency=48, max_attempts=3), run_seed=seed)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pool.run([store.load_group(id) for id in ids], on_sample=on_sample))
                tasks.create_task(_kill_and_start(engine, proxy, is_half))
            await asyncio.gather(*(store.queue.complete(lease) for lease in leases))
    return account(database, len(ids) * GROUP_SIZE, plan, client.faults, time.monotonic() - started)


def _loop(store: Store, model: Path, config: ToyConfig, client: HttpClient, window: int) -> AgentLoop:
    sampler = ShortReplies(client)
    return AgentLoop(
        env_class=Chatty,
        env_config=config,
        sampler=lambda env, trajectory: sampler,
        renderer=Renderer.from_pretrained(str(model)),
        recorder=store.recorder,
        limits=LimitsConfig(max_turns=NUM_TURNS, turn_timeout_s=900.0, episode_timeout_s=1800.0),
        sampling=SamplingConfig(),
        window=window,
    )


async def _kill_and_start(engine: VllmEngine, proxy: FaultyProxy, is_half: asyncio.Event) -> None:
    await is_half.wait()
    for child in psutil.Process().children(recursive=True):
        if "agentrl.engine.vllm.main" in child.cmdline():
            child.kill()
    await asyncio.sleep(1.0)
    assert engine.failure() is not None
    await engine.stop()
    await engine.start()
    proxy.target = engine.url


def account(
    database: Path, num_samples: int, plan: FaultPlan, failed_tries: Counter[EngineFault], seconds: float
) -> Outcome:
    """Read back by plain SQL what there is."""
    good = ", ".join(f"'{reason}'" for reason in StopReason if reason.ending.graded)
    with closing(sqlite3.connect(database)) as connection:

        def number(query: str) -> int:
            return int(connection.execute(f"SELECT count(*) FROM ({query})").fetchone()[0])

        well = f"SELECT count(*) AS num FROM trajectories WHERE stop_reason IN ({good}) GROUP BY group_id, sample"
        replies = "SELECT request_id FROM engine_calls GROUP BY request_id"
        twice = number(f"{replies} HAVING count(DISTINCT trajectory_id || '-' || turn) > 1")
        foreign = number("SELECT 1 FROM engine_calls WHERE request_id NOT LIKE trajectory_id || '-' || turn || '%'")
        return Outcome(
            num_samples=num_samples,
            num_attempts=number("SELECT 1 FROM trajectories"),
            num_turns=number("SELECT 1 FROM turns"),
            lost=num_samples - number(well),
            doubled=number(f"SELECT 1 FROM ({well}) WHERE num > 1") + twice + foreign,
            problems=[str(violation) for violation in audit(database)],
            injected=plan.counts,
            failed_tries=dict(failed_tries),
            seconds=seconds,
        )


async def _measure(folder: Path, num_calls: int, seed: int) -> Outcome:
    model = tiny.make(folder / "tiny", ["Say red for task 1."], seed=0)
    async with VllmEngine(VllmOptions(model=model, name="vllm", log=folder / "engine.log")) as engine:
        return await fault_run(engine, model, folder / "faults.db", num_calls, seed)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("agentrl").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(_measure(Path(folder), options.calls, options.seed))
    print(f"faults that the proxy drew: {done.injected}")
    print(f"failed tries of requests: { ({str(kind): num for kind, num in done.failed_tries.items()}) }")
    for problem in done.problems:
        print(f"the audit found: {problem}", file=sys.stderr)
    value = {
        "calls": done.num_turns,
        "samples": done.num_samples,
        "attempts": done.num_attempts,
        "lost": done.lost,
        "doubled": done.doubled,
        "problems": len(done.problems),
        "seconds": round(done.seconds, 1),
    }
    ok = not (done.lost or done.doubled or done.problems) and done.num_turns >= options.calls
    return report("vllm_faults", value, "lost 0, doubled 0, one server killed", ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
