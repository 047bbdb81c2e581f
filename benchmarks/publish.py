"""A publish of SmolLM2-135M (538 MB in float32) to a vLLM server, against the bare transport of the same bytes.

    python -m benchmarks.publish [--rounds 5] [--rollouts 2]

In turns in one run: a gloo broadcast between two processes that do nothing else, a publish by gloo; a copy of a file
with fsync, a publish by file. Publishes include the proof (checksums of all tensors, and a canary through the layers
that serve), once with nobody at the engine, once with rollouts in flight, which must lose nothing. Ends with one JSON
line; the ratios are of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.run import sent_tensors
from agentrl.sync.base import Canary
from agentrl.sync.choose import TransportName, make_transport
from agentrl.sync.remote import RemoteSync, Sent
from agentrl.train import smollm2
from agentrl.train.policy import Policy
from agentrl.transfer import GlooGroup, Manifest, write_file
from benchmarks import report

TARGET = 3.0
NUM_TOKENS = 48
"""Of a rollout in flight."""
PROMPT, FORCED = list(range(1000, 1040)), list(range(2000, 2008))
Times = dict[str, list[float]]


def take_broadcasts(meeting_file: str, manifest: Manifest, pipe: Connection) -> None:
    """The other end of the bare broadcast: receives into memory that is there already, and says when it has all."""
    torch.set_num_threads(1)
    group = GlooGroup(Path(meeting_file), rank=1, size=2, timeout_s=120)
    tensors = list(manifest.empty())
    while pipe.recv():
        group.send(tensors)
        pipe.send(True)


class Bare:
    """What the transports cost without a model, a server and a proof."""

    def __init__(self, folder: Path, sent: Sent) -> None:
        self._folder, self._sent = folder, sent
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=take_broadcasts, args=(str(folder / "ranks"), sent.manifest, theirs))
        self._process.start()
        self._group = GlooGroup(folder / "ranks", rank=0, size=2, timeout_s=120)
        write_file(folder / "source", sent.tensors)

    def gloo(self) -> float:
        """Seconds until the other process has all bytes."""
        started = time.perf_counter()
        self._pipe.send(True)
        self._group.send(self._sent.tensors.values())
        self._pipe.recv()
        return time.perf_counter() - started

    def file(self) -> float:
        """Seconds for a copy of the bytes that is flushed to the disk; they are in memory before."""
        started = time.perf_counter()
        with (self._folder / "source").open("rb") as source, (self._folder / "copy").open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 24)
            copy.flush()
            os.fsync(copy.fileno())
        seconds = time.perf_counter() - started
        (self._folder / "copy").unlink()
        return seconds

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join()


class Publisher:
    """Trainer and server, with a version after the other."""

    def __init__(self, policy: Policy, engine: VllmEngine, client: HttpClient, folder: Path, num_rollouts: int) -> None:
        self._policy, self._client, self._num_rollouts = policy, client, num_rollouts
        self._version = 0
        self._syncs: dict[TransportName, RemoteSync] = {}
        names: tuple[TransportName, ...] = ("gloo", "file")
        for name in names:
            self._syncs[name] = RemoteSync(make_transport(name, folder / "weights"))
            self._syncs[name].connect(policy.model, [engine])
        self.num_in_flight = self.num_lost = 0

    def logprobs(self) -> list[float]:
        return self._policy.logprobs(PROMPT + FORCED, range(len(PROMPT), len(PROMPT) + len(FORCED)))

    async def publish(self, name: TransportName) -> float:
        """Change every tensor, publish; seconds. The first one of a transport also meets the engine."""
        return await self._send(name, self._update())

    def _update(self) -> Canary:
        previous = self.logprobs()
        with torch.no_grad():
            for parameter in self._policy.named_parameters().values():
                parameter.to_local().mul_(1.0005)  # type: ignore[attr-defined]
        return Canary(prompt_ids=PROMPT, forced_ids=FORCED, expected=self.logprobs(), previous=previous, noise=1e-4)

    async def _send(self, name: TransportName, canary: Canary) -> float:
        self._version += 1
        got = await self._syncs[name].publish(self._version, sent_tensors(self._policy), canary, self._client)
        assert got.proof == "canary", got
        return got.seconds

    async def publish_in_flight(self, name: TransportName) -> float:
        """The same while rollouts are sampled, all of whose ids must come."""
        canary = self._update()
        running = [asyncio.create_task(self._rollout(number)) for number in range(self._num_rollouts)]
        await asyncio.sleep(0.2)
        seconds = await self._send(name, canary)
        for versions, num_ids in await asyncio.gather(*running):
            self.num_in_flight += len(versions) > 1
            self.num_lost += num_ids != NUM_TOKENS
        return seconds

    async def _rollout(self, number: int) -> tuple[set[int], int]:
        sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, seed=number)
        reply = await self._client.generate([3000 + number] * 16, sampling, f"rollout-{self._version}-{number}")
        return {span.version for span in reply.spans}, len(reply.ids)


async def measure(rounds: int, num_rollouts: int) -> tuple[Times, int, int]:
    """Seconds by what was done; rollouts whose weights changed on the way, and how many of all lost ids."""
    model = smollm2.prepare(None)
    times: Times = {}
    with tempfile.TemporaryDirectory() as place, Policy.load(model, device="cpu", threads=1) as policy:
        folder = Path(place)
        options = VllmOptions(model=model, name="vllm", log=folder / "log", max_model_len=256, start_timeout_s=600)
        bare = Bare(folder, Sent.of(sent_tensors(policy), on_cpu=True))
        async with VllmEngine(options) as engine, HttpClient(engine.url, key=engine.key, name="vllm") as client:
            publisher = Publisher(policy, engine, client, folder, num_rollouts)
            transfers: dict[TransportName, Callable[[], float]] = {"gloo": bare.gloo, "file": bare.file}
            for name, transfer in transfers.items():
                for number in range(rounds + 1):
                    seconds = {
                        f"bare {name}": await asyncio.to_thread(transfer),
                        name: await publisher.publish(name),
                        f"{name} in flight": await publisher.publish_in_flight(name),
                    }
                    shown = ", ".join(f"{what} {value:.2f} s" for what, value in seconds.items())
                    print(f"load {os.getloadavg()[0]:.1f}: {shown}", flush=True)
                    if number:  # the first round warms up
                        for what, value in seconds.items():
                            times.setdefault(what, []).append(value)
        bare.close()
    return times, publisher.num_in_flight, publisher.num_lost


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=2, help="in flight")
    options = parser.parse_args()
    times, num_in_flight, num_lost = asyncio.run(measure(options.rounds, options.rollouts))
    medians = {name: statistics.median(values) for name, values in times.items()}
    value = {f"{name}_ratio": medians[name] / medians[f"bare {name}"] for name in ("gloo", "file")}
    value |= {
        f"{name}_in_flight_ratio": medians[f"{name} in flight"] / medians[f"bare {name}"] for name in ("gloo", "file")
    }
    value |= {f"{name.replace(' ', '_')}_s": seconds for name, seconds in medians.items()}
    value |= {"rollouts_in_flight": num_in_flight, "rollouts_that_lost_ids": num_lost}
    ok = max(value["gloo_ratio"], value["file_ratio"]) <= TARGET and num_lost == 0 and num_in_flight > 0
    target = f"gloo_ratio and file_ratio <= {TARGET:g}, no rollout loses ids"
    return report("publish_smollm2", {name: round(number, 3) for name, number in value.items()}, target, ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
