"""Trainer against a vLLM server in float32, over 4-turn tool conversations, after each of ten publishes.

Each version is published while conversations of the one before are in flight, and each sampled id is compared with the
weights of its own version; then a round is played by the new version alone. Once with a tied head, once without.

    python -m benchmarks.vllm_parity [--versions 10] [--conversations 64] [--transport file]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from agentrl.batch.rows import Row, build_rows
from agentrl.cli.compose import load_config
from agentrl.config import LimitsConfig, RolloutConfig, SamplingConfig
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.envs.calculator import CalculatorConfig
from agentrl.probe import Probe
from agentrl.progress import Silent
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.meter import metered
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.run import base_model, sent_tensors
from agentrl.sync.choose import TransportName, make_transport
from agentrl.sync.remote import RemoteSync
from agentrl.testing.memory import MemoryRecorder
from agentrl.train.policy import Policy
from agentrl.types import Group, Purpose, Sample
from benchmarks import report
from benchmarks.parity import NUM_TURNS, Talkative

TARGET = 1e-4
MIN_IDS = 2000
"""Sampled ids of each version that must be compared."""
STEP = 0.002
"""Standard deviation of what a version adds to each weight: it still calls the tool, and its logprobs move by far more
than any rounding."""
NOISE = 1e-5
"""Nats by which trainer and engine may differ."""
TASKS = CalculatorConfig(level=3)
Weights = dict[str, torch.Tensor]


@dataclass(kw_only=True)
class Parity:
    """A trainer's policy, a server that is sent its weights, and what was compared so far."""

    policy: Policy
    client: HttpClient
    sync: RemoteSync
    renderer: Renderer
    num_conversations: int
    difference: float = 0.0
    """max |trainer - engine| in nats."""
    num_ids: Counter[int] = field(default_factory=Counter)
    """Compared, by version."""
    num_calls: int = 0
    num_mixed: int = 0
    """Conversations that two versions sampled."""
    num_cached: float = 0.0
    """Prompt ids that came from the cache of prefixes."""

    async def play(self, ordinal: int) -> list[Sample]:
        """One round of conversations."""
        sampler = EngineSampler(self.client)
        loop = AgentLoop(
            env_class=Talkative, env_config=TASKS, sampler=lambda env, trajectory: sampler, renderer=self.renderer,
            recorder=MemoryRecorder(), limits=LimitsConfig(max_turns=NUM_TURNS, max_turn_tokens=64),
            sampling=SamplingConfig(), window=self.engine_window,
        )  # fmt: skip
        tasks = Talkative.tasks(TASKS, "train")[: self.num_conversations]
        groups = [
            Group(id=f"{ordinal}-{n}", run="parity", task=task, purpose=Purpose.TRAIN, ordinal=ordinal, size=1)
            for n, task in enumerate(tasks)
        ]
        played = await RolloutPool(loop, RolloutConfig(), run_seed=ordinal).run(groups)
        return [sample for group in played for sample in group.samples]

    @property
    def engine_window(self) -> int:
        assert self.client.max_model_len is not None
        return self.client.max_model_len

    def compare(self, samples: Sequence[Sample], weights: dict[int, Weights]) -> None:
        """Every sampled id with the weights of its version."""
        rows = [row for sample in samples for row in build_rows(sample)]
        for version, its in weights.items():
            self.put(its)
            for row in rows:
                self.compare_row(row, version)
        self.num_calls += sum(len(turn.tool_calls) for sample in samples for turn in sample.trajectory.turns)
        self.num_mixed += sum(len(set(row.versions[row.mask == 1].tolist())) > 1 for row in rows)

    def compare_row(self, row: Row, version: int) -> None:
        places = np.flatnonzero((row.mask == 1) & (row.versions == version))
        if len(places):
            expected = np.array(self.policy.logprobs(row.ids.tolist(), places.tolist()))
            self.difference = max(self.difference, float(np.abs(expected - row.logprobs[places]).max()))
            self.num_ids[version] += len(places)

    def local(self) -> Weights:
        """The policy's own memory: one rank holds all of it."""
        return {name: parameter.to_local() for name, parameter in self.policy.named_parameters().items()}

    def weights(self) -> Weights:
        return {name: tensor.clone() for name, tensor in self.local().items()}

    @torch.no_grad()
    def put(self, weights: Weights) -> None:
        for name, tensor in self.local().items():
            tensor.copy_(weights[name])

    @torch.no_grad()
    def move(self, version: int) -> None:
        """What a training step does to the weights, from a seed."""
        generator = torch.Generator().manual_seed(version)
        for tensor in self.local().values():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=STEP)

    async def next_version(self, version: int, prompt: list[int]) -> None:
        """Publish it while a round is in flight, and compare that round and another one."""
        old, probe = self.weights(), Probe(self.policy, prompt[:1], prompt[1:])
        in_flight = asyncio.create_task(self.play(2 * version))
        await asyncio.sleep(1.0)
        self.move(version)
        await self.sync.publish(version, sent_tensors(self.policy), probe.canary(NOISE), self.client)
        new = self.weights()
        self.compare(await in_flight, {version - 1: old, version: new})
        async with metered([self.client]) as engine:
            samples = await self.play(2 * version + 1)
        self.compare(samples, {version: new})
        self.num_cached += engine["num_prefix_hit_tokens"]


def untied(model: Path, folder: Path) -> Path:
    """A copy of a model with tied embeddings whose head is a matrix of its own."""
    folder.mkdir()
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 1.1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


async def measure(model: Path, folder: Path, transport: TransportName, versions: int, conversations: int) -> Parity:
    """All versions of one model."""
    renderer = Renderer.from_pretrained(str(model))
    options = VllmOptions(model=model, name="vllm", log=folder / "engine.log")
    async with VllmEngine(options) as engine, HttpClient(engine.url, key=engine.key, name=engine.name) as client:
        with Policy.load(model) as policy:
            sync = RemoteSync(make_transport(transport, folder / "weights"))
            sync.connect(policy.model, [engine])
            parity = Parity(
                policy=policy, client=client, sync=sync, renderer=renderer,
                num_conversations=conversations,
            )  # fmt: skip
            prompt = renderer.start(Talkative.tasks(TASKS, "train")[0].messages, [])
            for version in range(1, versions + 1):
                await parity.next_version(version, prompt)
    return parity


def figures(parity: Parity) -> dict[str, Any]:
    return {
        "max_logprob_difference": parity.difference,
        "fewest_ids_of_a_version": min(num for version, num in parity.num_ids.items() if version),
        "ids": sum(parity.num_ids.values()),
        "tool_calls": parity.num_calls,
        "conversations_of_two_versions": parity.num_mixed,
        "prefix_hits": parity.num_cached,
    }


async def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--transport", choices=("gloo", "file"), default="gloo")
    parser.add_argument("--conversations", type=int, default=64)
    options = parser.parse_args()
    value = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        config = load_config("calculator", [f"runs_dir={place / 'runs'}"])
        model = await base_model(config, Silent())
        for kind, folder in (("tied", model), ("untied", untied(model, place / "untied"))):
            (place / kind).mkdir(exist_ok=True)
            parity = await measure(folder, place / kind, options.transport, options.versions, options.conversations)
            value[kind] = figures(parity)
            print(kind, value[kind], flush=True)
    good = (
        its["max_logprob_difference"] <= TARGET and its["fewest_ids_of_a_version"] >= MIN_IDS for its in value.values()
    )
    ok = all(good)
    target = f"difference <= {TARGET}, ids of each version >= {MIN_IDS}"
    return report("vllm_parity", value, target, ok)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
