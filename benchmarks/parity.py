"""Trainer against engine over 4-turn tool conversations in float32, and what the engine saw against what is trained on.

Half of the conversations are sampled from a model with random weights (so the ids are as odd as they get: splits that
no tokenizer makes), half are the oracle's play, decoded by force through the same serving path with real logprobs.

    python -m benchmarks.parity
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.batch.rows import Row, build_rows
from agentrl.config import AlgorithmConfig, LimitsConfig, RolloutConfig, SamplingConfig, TrainConfig
from agentrl.engine.embedded import EmbeddedEngine
from agentrl.environment import Environment, StepResult
from agentrl.envs.calculator import Calculator, CalculatorConfig
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.parsers import make_parser
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.testing.memory import MemoryRecorder
from agentrl.tool import ToolResult
from agentrl.train import tiny
from agentrl.train.policy import Policy
from agentrl.train.trainer import Trainer
from agentrl.types import Group, Message, Purpose, Sample, Trajectory
from benchmarks import report

NUM_TURNS = 4
NUM_CONVERSATIONS = 48
TARGET = 1e-4


class Talkative(Calculator):
    """A calculator that goes on for four turns whatever is said."""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        step = await super().step(reply, results)
        return step if step.messages else StepResult(messages=[Message(role="user", content="Go on: 7 <|im_end|>")])


@dataclass
class Wire:
    """A client that remembers what went over the wire."""

    inner: HttpClient
    seen: dict[str, tuple[list[int], Generation]] = field(default_factory=dict)

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        generation = await self.inner.generate(ids, sampling, request_id)
        self.seen[request_id] = (list(ids), generation)
        return generation


@dataclass
class ForcedOracle:
    """The oracle's replies, decoded by force by the engine."""

    engine: EmbeddedEngine
    wire: Wire
    renderer: Renderer
    oracle: Any

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        forced = self.renderer.encode_reply(self.oracle(messages))
        generation = await self.wire.generate(ids, replace(params, max_tokens=1), request_id)
        logprobs, _ = await self.engine.score(ids, forced)
        spans = [replace(generation.spans[0], end=len(forced))]
        generation = replace(generation, ids=forced, logprobs=logprobs, spans=spans, finish_reason="stop")
        self.wire.seen[request_id] = (list(ids), generation)
        return generation


async def play(engine: EmbeddedEngine, renderer: Renderer, forced: bool) -> tuple[list[Sample], Wire]:
    """One group per task, one sample each."""
    config = CalculatorConfig(level=3, train_tasks=NUM_CONVERSATIONS)
    env_class: type[Environment] = Calculator if forced else Talkative
    async with HttpClient(engine.url, key=engine.key) as client:
        wire = Wire(client)

        def sampler(env: Environment, trajectory: Trajectory) -> Any:
            return ForcedOracle(engine, wire, renderer, env.oracle(trajectory.task)) if forced else EngineSampler(wire)

        loop = AgentLoop(
            env_class=env_class,
            env_config=config,
            sampler=sampler,
            renderer=renderer,
            recorder=MemoryRecorder(),
            limits=LimitsConfig(max_turns=NUM_TURNS, max_turn_tokens=40),
            sampling=SamplingConfig(temperature=1.0 if forced else 0.8),
            window=engine.max_model_len,
        )
        groups = [
            Group(id=task.id, run="parity", task=task, purpose=Purpose.TRAIN, ordinal=n, size=1)
            for n, task in enumerate(env_class.tasks(config, "train"))
        ]
        played = await RolloutPool(loop, RolloutConfig(), run_seed=0).run(groups)
    return [sample for group in played for sample in group.samples], wire


def retokenized_segments(samples: Sequence[Sample], rows: Sequence[Row], wire: Wire) -> int:
    """Turns whose ids in a Row are not the very ids that the engine saw and sampled."""
    by_trajectory = {row.trajectory: row for row in rows}
    wrong = 0
    for sample in samples:
        row = by_trajectory[sample.trajectory.id]
        for turn in sample.trajectory.turns:
            context, generation = wire.seen[f"{sample.trajectory.id}-{turn.index}"]
            expected = context + generation.ids
            wrong += row.ids[: len(expected)].tolist() != expected
    return wrong


async def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        env = Calculator(CalculatorConfig(level=3))
        tasks = Calculator.tasks(CalculatorConfig(level=3, train_tasks=500), "train")
        texts = [message.text for task in tasks for message in task.messages]
        texts += [make_parser("hermes").write(env.oracle(task)(task.messages)) for task in tasks]
        model = tiny.make(Path(folder), texts, seed=0)
        renderer = Renderer.from_pretrained(str(model))
        async with EmbeddedEngine(model) as engine:
            forced, forced_wire = await play(engine, renderer, forced=True)
            sampled, sampled_wire = await play(engine, renderer, forced=False)
        with Policy.load(model) as policy:
            trainer = Trainer(policy, TrainConfig(), AlgorithmConfig())
            results = []
            for samples, wire in ((forced, forced_wire), (sampled, sampled_wire)):
                rows = [row for sample in samples for row in build_rows(sample)]
                results.append((trainer.score(rows), retokenized_segments(samples, rows, wire)))
        drifted = sum(renderer.retokenized(turn.sampled_ids) for s in sampled for turn in s.trajectory.turns)
    return conclude([*forced, *sampled], results, drifted)


def conclude(samples: Sequence[Sample], results: list[tuple[dict[str, float], int]], drifted: int) -> bool:
    turns = [len(sample.trajectory.turns) for sample in samples]
    calls = sum(len(turn.tool_calls) for sample in samples for turn in sample.trajectory.turns)
    delta = max(metrics["mismatch_logprob_max"] for metrics, _ in results)
    tokens = sum(metrics["mismatch_num_tokens"] for metrics, _ in results)
    wrong = sum(count for _, count in results)
    print(
        f"{len(samples)} conversations, {np.mean(turns):.2f} turns each, {calls} tool calls, {tokens:.0f} sampled ids"
    )
    print(f"turns whose text would be tokenized to other ids than were sampled: {drifted}")
    value = {"max_logprob_difference": delta, "retokenized_segments": wrong}
    return report("parity", value, f"difference <= {TARGET}, segments 0", delta <= TARGET and wrong == 0)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
