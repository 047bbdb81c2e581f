"""A fault run: 20 % of the engine's calls fail, tools raise, leave, hang and flood, hooks of the environment fail.

Every rollout must be accounted for: each attempt is one stored trajectory with one StopReason, the final attempts are
the groups' samples, each has a grade where its ending asks for one, and all counts add up.

    python -m benchmarks.faults [--rollouts 2000]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from agentrl.config import LimitsConfig, RolloutConfig, SamplingConfig
from agentrl.errors import EngineFault
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.parsers import make_parser
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.samplers import EngineSampler
from agentrl.store.store import Store
from agentrl.testing.endpoint import FaultPlan, Reply, Script, ScriptedEndpoint, SeenRequest
from agentrl.testing.faulty import Faulty, FaultyConfig
from agentrl.train.tiny import build_tokenizer
from agentrl.types import GroupState, Message, Purpose, Sample, StopReason, ToolCall
from benchmarks import report

GROUP_SIZE = 8
MAX_SECONDS = 180
FAULT_SHARE = 0.2
CALLS = (
    ("repeat", '{"text": "red"}'),
    ("explode", '{"text": "no luck"}'),
    ("leave", '{"text": "bye"}'),
    ("raw", '{"text": "red"}'),
    ("nothing", '{"text": "red"}'),
    ("repeat", '{"times": "many"}'),
    ("missing", "{}"),
)
"""What the model calls in turn; now and then it calls `hang` or `flood`."""


@dataclass(kw_only=True, slots=True)
class Account:
    """What became of a fault run."""

    num_samples: int
    heard: list[Sample]
    """Every attempt, as the pool told of it."""
    stored: Counter[str]
    """Trajectories in the database by StopReason; "running" where one has none."""
    finals: Counter[str]
    """Final attempts in the groups by StopReason."""
    ungraded: int
    """Final attempts whose ending asks for a grade and that have none."""
    incomplete: int
    """Groups that are not complete."""
    engine_faults: Counter[EngineFault]
    injected: int
    seconds: float

    def problems(self) -> list[str]:
        """Why not everything is accounted for; empty: it is."""
        attempts = Counter(str(sample.trajectory.stop_reason) for sample in self.heard)
        found = []
        if attempts != self.stored:
            found.append(f"attempts {dict(attempts)} but stored {dict(self.stored)}")
        if len({sample.trajectory.id for sample in self.heard}) != len(self.heard):
            found.append("a trajectory was told of twice")
        if self.finals.total() != self.num_samples:
            found.append(f"{self.finals.total()} final attempts of {self.num_samples} samples")
        if self.stored["running"] or self.finals["None"] or self.ungraded or self.incomplete:
            found.append(f"unfinished {self.stored['running']}, ungraded {self.ungraded}, incomplete {self.incomplete}")
        return found


def script(renderer: Renderer) -> Script:
    """Two calls, then an answer. Which calls follows from the request's seed."""

    def encode(name: str, arguments: str) -> list[int]:
        call = ToolCall(id="call_0", name=name, arguments=arguments)
        return renderer.encode_reply(Message(role="assistant", tool_calls=[call]))

    calls = [encode(name, arguments) for name, arguments in CALLS]
    hang, flood = encode("hang", '{"seconds": 3}'), encode("flood", '{"megabytes": 100}')
    answer = renderer.encode_reply(Message(role="assistant", content="red"))

    def say(seen: SeenRequest) -> Reply:
        draw = seen.sampling["seed"] % 1000
        if seen.turn >= 2:
            return Reply(ids=answer)
        return Reply(ids=flood if draw < 3 else hang if draw < 10 else calls[draw % len(calls)])

    return say


async def fault_run(store: Store, num_rollouts: int, seed: int = 0) -> Account:
    """Play groups of `GROUP_SIZE` against an endpoint with all kinds of faults."""
    config = FaultyConfig(num_tasks=num_rollouts // GROUP_SIZE, fault_share=0.1, hang_s=2.5, seed=seed)
    tasks = Faulty.tasks(config, "train")
    texts = [message.text for task in tasks[:64] for message in task.messages]
    renderer = Renderer(build_tokenizer([*texts, *(make_parser("hermes").write(_calling(*call)) for call in CALLS)]))
    plan = FaultPlan(FAULT_SHARE, seed=seed)
    run = await store.create_run("faults", {})
    await store.add_version(run, parent=None, step=None, weights_hash="", ordinal=0)
    ids = [
        await store.queue.plan(run, task, purpose=Purpose.COLLECT, ordinal=n, size=GROUP_SIZE)
        for n, task in enumerate(tasks)
    ]
    leases = await store.queue.lease(run, 600, groups=ids)
    heard: list[Sample] = []
    started = time.monotonic()
    async with (
        ScriptedEndpoint(script(renderer), fault=plan, key="hush", keep_seen=False) as endpoint,
        HttpClient(
            endpoint.url,
            key="hush",
            request_timeout_s=1.0,
            retry=RetryPolicy(max_tries=3, wait_s=0.05),
        ) as client,
    ):
        await open_despite_faults(client)
        sampler = EngineSampler(client)
        loop = AgentLoop(
            env_class=Faulty,
            env_config=config,
            sampler=lambda env, trajectory: sampler,
            renderer=renderer,
            recorder=store.recorder,
            limits=LimitsConfig(
                tool_timeout_s=1.0,
                turn_timeout_s=10.0,
                episode_timeout_s=20.0,
                grade_timeout_s=1.0,
                max_abandoned_threads=64,
            ),
            sampling=SamplingConfig(),
            window=4096,
        )
        pool = RolloutPool(loop, RolloutConfig(concurrency=256, max_attempts=3), run_seed=seed)
        await pool.run([store.load_group(id) for id in ids], on_sample=heard.append)
    await asyncio.gather(*(store.queue.complete(lease) for lease in leases))
    return account(store, run, ids, heard, client.faults, plan, time.monotonic() - started)


async def open_despite_faults(client: HttpClient) -> None:
    """Faults may hit the very first request."""
    await client.open()
    client.faults.clear()


def account(
    store: Store,
    run: str,
    ids: list[str],
    heard: list[Sample],
    engine_faults: Counter[EngineFault],
    plan: FaultPlan,
    seconds: float,
) -> Account:
    """Read back from the database what there is."""
    stored = Counter(str(summary.stop_reason or "running") for summary in store.find_trajectories(run=run))
    groups = [store.load_group(id) for id in ids]
    finals = [sample for group in groups for sample in group.samples]
    ungraded = [
        sample
        for sample in finals
        if StopReason(str(sample.trajectory.stop_reason)).ending.graded and sample.grade is None
    ]
    return Account(
        num_samples=len(ids) * GROUP_SIZE,
        heard=heard,
        stored=stored,
        finals=Counter(str(sample.trajectory.stop_reason) for sample in finals),
        ungraded=len(ungraded),
        incomplete=sum(group.state is not GroupState.COMPLETE for group in groups),
        engine_faults=engine_faults,
        injected=sum(plan.counts.values()),
        seconds=seconds,
    )


def _calling(name: str, arguments: str) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id="call_0", name=name, arguments=arguments)])


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("agentrl").setLevel(logging.ERROR)  # a line for each fault is what a run's log is for
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "faults.db") as store:
        done = asyncio.run(fault_run(store, options.rollouts, options.seed))
        size = (Path(folder) / "faults.db").stat().st_size
    problems = done.problems()
    print(f"attempts by ending: {dict(done.stored)}")
    print(f"samples by ending of the final attempt: {dict(done.finals)}")
    print(f"failed tries of requests: { ({str(kind): num for kind, num in done.engine_faults.items()}) }")
    print(f"faults that the endpoint drew: {done.injected}; database: {size / 2**20:.0f} MB")
    for problem in problems:
        print(f"not accounted for: {problem}", file=sys.stderr)
    value = {
        "rollouts": done.num_samples,
        "attempts": len(done.heard),
        "unaccounted": len(problems),
        "seconds": round(done.seconds, 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    ok = not problems and done.seconds <= MAX_SECONDS and done.num_samples == options.rollouts
    return report("faults", value, f"all accounted for, seconds <= {MAX_SECONDS}", ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
