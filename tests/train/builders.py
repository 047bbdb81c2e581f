"""Tiny models, random groups, and an independent gradient to compare with."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from agentrl.batch.advantages import assign_advantages
from agentrl.batch.packing import Aggregation
from agentrl.batch.rows import Row, build_rows
from agentrl.config import AlgorithmConfig, TrainConfig
from agentrl.train.policy import Policy, full_tensor
from agentrl.train.trainer import Trainer
from agentrl.types import (
    EngineCall,
    Grade,
    Group,
    Message,
    Purpose,
    Sample,
    Sampler,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

VOCAB = 61
TEMPERATURE = 0.8


def qwen2_config(**changes: Any) -> Qwen2Config:
    values = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return Qwen2Config(**{**values, **changes})


def gpt2_config() -> GPT2Config:
    """Absolute positions; special ids that lie inside the small vocabulary; dropout, which the policy turns off."""
    return GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )


@contextmanager
def exact_norm() -> Iterator[None]:
    """Qwen2's norm in the type of its input: transformers' own goes through float32, which in float64 costs 1e-8."""

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden * torch.rsqrt(variance + self.variance_epsilon)

    original = Qwen2RMSNorm.forward
    Qwen2RMSNorm.forward = forward
    try:
        yield
    finally:
        Qwen2RMSNorm.forward = original


def make_policy(config: Any | None = None, seed: int = 0, **options: Any) -> Policy:
    return Policy.random(config or qwen2_config(), seed, **{"device": "cpu", "threads": 1, **options})


def make_trainer(policy: Policy, aggregation: Aggregation = "token", **train: Any) -> Trainer:
    train_config = TrainConfig(**{"micro_batch_tokens": 64, "learning_rate": 1e-2, "warmup_steps": 0, **train})
    return Trainer(policy, train_config, AlgorithmConfig(aggregation=aggregation))


def make_turn(
    generator: np.random.Generator, index: int, parent: int | None, keep: int, num_prompt: int, num_sampled: int
) -> Turn:
    call = EngineCall(
        start=0,
        end=num_sampled,
        version=0,
        request_id="r",
        engine="e",
        finish_reason="stop",
        sampling={"temperature": TEMPERATURE},
    )
    return Turn(
        index=index,
        parent=parent,
        keep=keep,
        prompt_ids=generator.integers(0, VOCAB, num_prompt).tolist(),
        sampled_ids=generator.integers(0, VOCAB, num_sampled).tolist(),
        logprobs=(-4.0 + 0.5 * generator.normal(size=num_sampled)).tolist(),
        calls=[call],
        prompt_messages=[],
        message=Message(role="assistant"),
        sampler=Sampler.ENGINE,
    )


def make_sample(generator: np.random.Generator, id: str, reward: float, *, branching: bool = False) -> Sample:
    """Two to four turns; with `branching`, some start from a part of an earlier turn, so that Rows share ids."""
    turns: list[Turn] = []
    lengths: list[int] = []
    for index in range(int(generator.integers(2, 5))):
        parent = index - 1 if index else None
        keep = lengths[-1] if index else 0
        if branching and index and generator.random() < 0.6:
            parent = int(generator.integers(0, index))
            keep = int(generator.integers(1, lengths[parent] + 1))
        num_prompt, num_sampled = (int(n) for n in generator.integers(1, 7, size=2))
        turns.append(make_turn(generator, index, parent, keep, num_prompt, num_sampled))
        lengths.append(keep + num_prompt + num_sampled)
    task = Task(env="toy", id="0", split="train", messages=[])
    trajectory = Trajectory(id=id, run="r", task=task, group=id[0], turns=turns, stop_reason=StopReason.COMPLETED)
    return Sample(trajectory=trajectory, grade=Grade(reward=reward))


def make_groups(seed: int = 0, *, num_groups: int = 2, size: int = 4, branching: bool = False) -> list[Group]:
    generator = np.random.default_rng(seed)
    groups = []
    for ordinal in range(num_groups):
        name = chr(ord("a") + ordinal)
        samples = [
            make_sample(generator, f"{name}{i}", float(i + generator.random()), branching=branching)
            for i in range(size)
        ]
        task = samples[0].trajectory.task
        groups.append(
            Group(id=name, run="r", task=task, purpose=Purpose.TRAIN, ordinal=ordinal, size=size, samples=samples)
        )
    return groups


def make_rows(groups: list[Group]) -> list[Row]:
    """Rows with advantages."""
    rows = [row for group in groups for sample in group.samples for row in build_rows(sample)]
    assign_advantages(groups, rows)
    return rows


def plain_model(policy: Policy) -> Any:
    """The same weights in a model without FSDP, packing, chunks or checkpointing."""
    model = AutoModelForCausalLM.from_config(
        copy.deepcopy(policy.model.config), dtype=policy.loss_dtype, attn_implementation="sdpa"
    )
    model.load_state_dict(dict(policy.tensors(policy.loss_dtype)), strict=False)
    return model.eval()


def plain_loss(model: Any, groups: list[Group], aggregation: Aggregation, *, left: bool = False) -> torch.Tensor:
    """GRPO's loss straight from the turns: every turn in its own context, padded, full logits, nothing shared.

    Knows no Row: the context comes from `Trajectory.full`.
    """
    sequences, first, behaviour, advantages, owners = [], [], [], [], []
    for group in groups:
        rewards = np.array([sample.grade.reward for sample in group.samples])
        for sample, advantage in zip(group.samples, (rewards - rewards.mean()) / (rewards.std() + 1e-6), strict=True):
            for turn in sample.trajectory.turns:
                sequences.append(sample.trajectory.full(turn.index))
                first.append(len(sample.trajectory.context(turn.index)))
                behaviour.append(turn.logprobs)
                advantages.append(advantage)
                owners.append(sample.trajectory.id)
    longest = max(map(len, sequences))
    by_owner: dict[str, list[torch.Tensor]] = {}
    ids = torch.zeros(len(sequences), longest, dtype=torch.int64)
    attention = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        start = longest - len(sequence) if left else 0
        ids[i, start : start + len(sequence)] = torch.tensor(sequence)
        attention[i, start : start + len(sequence)] = 1
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits
    table = torch.log_softmax(logits / TEMPERATURE, dim=-1)
    for i, sequence in enumerate(sequences):
        start = longest - len(sequence) if left else 0
        for offset, old in enumerate(behaviour[i]):
            place = start + first[i] + offset
            ratio = torch.exp(table[i, place - 1, ids[i, place]] - old)
            a = float(advantages[i])
            by_owner.setdefault(owners[i], []).append(-torch.min(ratio * a, ratio.clamp(0.8, 1.28) * a))
    if aggregation == "token":
        return torch.stack([value for values in by_owner.values() for value in values]).mean()
    return torch.stack([torch.stack(values).mean() for values in by_owner.values()]).mean()


def plain_gradient(
    policy: Policy, groups: list[Group], aggregation: Aggregation
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient by parameter name, by plain autograd."""
    model = plain_model(policy)
    loss = plain_loss(model, groups, aggregation)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def our_gradient(trainer: Trainer, rows: list[Row]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient as the trainer accumulates them for one Batch."""
    (batch,) = trainer.batches(rows)
    loss, _ = trainer.accumulate(batch)
    parameters = trainer.policy.named_parameters()
    gradient = {name: full_tensor(parameter.grad).clone() for name, parameter in parameters.items()}
    trainer.optimizer.zero_grad()
    return loss, gradient


def relative_distance(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """|left - right| / |right| over all parameters."""
    assert left.keys() == right.keys()
    difference = sum(float((left[name] - right[name]).double().pow(2).sum()) for name in right)
    return math.sqrt(difference / sum(float(value.double().pow(2).sum()) for value in right.values()))


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.tensors()}
