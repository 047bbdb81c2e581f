"""The trainer: Rows in, updated weights and a report out.

A step is one or more Batches, each one update. Nothing here draws random numbers. With several ranks, each computes
its share of a Batch's micro-batches; what is measured of them comes back to rank 0, which decides and reports. Left
out: a reference model and its KL term; balancing the shares by tokens.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from agentrl.batch.packing import Batch, MicroBatch, deal, engine_ids, make_batches, pack
from agentrl.batch.rows import Floats, Row
from agentrl.config import AlgorithmConfig, TrainConfig
from agentrl.errors import BadUpdates, TrainingError
from agentrl.train.losses import policy_gradient_loss, sft_loss
from agentrl.train.optimizer import Optimizer, like
from agentrl.train.policy import Policy, full_tensor
from agentrl.train.report import (
    BatchReport,
    StepReport,
    TokenLog,
    columns_of,
    mismatch_metrics,
    row_reports,
    step_metrics,
)
from agentrl.train.trend import MismatchTrend

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
LossName = Literal["policy_gradient", "imitation"]


class Measured(NamedTuple):
    """What a rank reports of one micro-batch."""

    loss: float
    columns: dict[str, Floats]
    """Each [S]; see `TokenLog`."""


class Trainer:
    """Owns the optimizer of one policy. With several ranks this is rank 0's; the others take part."""

    def __init__(self, policy: Policy, train_config: TrainConfig, algorithm_config: AlgorithmConfig) -> None:
        self.policy = policy
        self.train_config = train_config
        self.algorithm_config = algorithm_config
        self.num_bad_updates = 0
        """Updates in a row that were not finite."""
        self.trend = MismatchTrend()
        self.watches_mismatch = True
        """Should the trainer's weights have sampled the Rows? Then a gap that grows is a warning."""
        self._norm = torch.zeros(())
        """Of the gradient, between taking and applying it."""
        self.optimizer = Optimizer(policy, train_config)
        self.name_on_ranks = policy.ranks.add_trainer(train_config, algorithm_config)

    def batches(self, rows: Sequence[Row]) -> list[Batch]:
        """The Batches of a step; a function of the Rows and the configs."""
        return make_batches(
            rows,
            updates_per_step=self.train_config.updates_per_step,
            micro_batch_tokens=self.train_config.micro_batch_tokens,
            aggregation=self.algorithm_config.aggregation,
        )

    def score(self, rows: Sequence[Row]) -> dict[str, float]:
        """Fill `proximal` and measure how far the sampler's logprobs are from the trainer's (G2).

        Call it after advantages are assigned: what is then trained on is packed as in training, so the ratio to the
        proximal logprobs is exactly 1 in the first update (C07), and Rows without weight cost nothing. Where no Row has
        weight, all that an engine sampled is scored, so that the mismatch is measured at every step.
        """
        micro_batches = [micro_batch for batch in self.batches(rows) for micro_batch in batch.micro_batches]
        if not micro_batches:
            sampled = [row for row in rows if engine_ids(row).any()]
            micro_batches = pack(sampled, self.train_config.micro_batch_tokens, engine_ids, lambda row: 0.0)
        behaviour, proximal, places = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
        scored = self._on_shares(self._score_share, micro_batches)
        for micro_batch, values in zip(micro_batches, scored, strict=True):
            for number, row in enumerate(micro_batch.rows):
                here = micro_batch.row_number == number
                row.proximal[micro_batch.row_place[here]] = values[here]
            behaviour.append(micro_batch.column("logprobs"))
            proximal.append(values)
            places.append(micro_batch.row_place)
        metrics = mismatch_metrics(np.concatenate(behaviour), np.concatenate(proximal), np.concatenate(places))
        if self.watches_mismatch:
            for warning in self.trend.add(metrics):
                LOGGER.warning(warning)
        return metrics

    def step(self, rows: Sequence[Row], step_ordinal: int) -> StepReport:
        """Train on the Rows that have weight. `step_ordinal` (from 0) is the step's place on the surviving line.

        Without any weight there is no update, and the report says `no_signal`. An update whose loss or gradient is not
        finite is skipped and the next Batch goes on; `max_bad_updates` in a row raise BadUpdates (G3).
        """
        seconds: dict[str, float] = {}
        with timed(seconds, "pack"):
            batches = self.batches(rows)
        learning_rate = scheduled_learning_rate(self.train_config, step_ordinal)
        log = TokenLog()
        reports = []
        for number, batch in enumerate(batches):
            name = f"step {step_ordinal}, batch {number}"
            report, measured = self._update(batch, "policy_gradient", learning_rate, seconds, name)
            reports.append(report)
            for micro_batch, values in zip(batch.micro_batches, measured, strict=True):
                log.add(number, micro_batch, values.columns)
        return StepReport(
            ordinal=step_ordinal,
            learning_rate=learning_rate,
            batches=reports,
            rows=row_reports(rows, batches, log),
            metrics=step_metrics(reports, log),
            seconds=seconds,
        )

    def sft_step(self, rows: Sequence[Row], step_ordinal: int) -> StepReport:
        """One update by imitation, over the Rows that `build_rows(..., for_sft=True)` gave weight, per token.

        Use a trainer of its own for a warm start: an optimizer's moments shouldn't be carried into the policy gradient.
        Raises TrainingError if no Row has weight, and as `step` does (G3).
        """
        batches = make_batches(
            rows,
            updates_per_step=1,
            micro_batch_tokens=self.train_config.micro_batch_tokens,
            aggregation="token",
        )
        if not batches:
            raise TrainingError("no demonstration has an id to imitate: every Row has weight 0")

        seconds: dict[str, float] = {}
        learning_rate = scheduled_learning_rate(self.train_config, step_ordinal)
        name = f"supervised step {step_ordinal}"
        report, _ = self._update(batches[0], "imitation", learning_rate, seconds, name)
        return StepReport(
            ordinal=step_ordinal,
            learning_rate=learning_rate,
            batches=[report],
            rows=row_reports(rows, batches, TokenLog()),
            metrics={"loss": report.loss, "grad_norm": report.grad_norm, "num_tokens": report.num_tokens},
            seconds=seconds,
        )

    def accumulate(self, batch: Batch, loss: LossName = "policy_gradient") -> tuple[float, list[Measured]]:
        """Add the gradient of the whole Batch's loss to the parameters' `grad`.

        Returns the loss, and what was measured of each micro-batch.
        """
        measured = self._on_shares(self._backward_share, batch.micro_batches, loss)
        return sum(part.loss for part in measured), measured

    def optimizer_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """("parameter/key", whole tensor) of the optimizer's state; nothing before the first update."""
        for name, parameter in self.policy.named_parameters().items():
            for key in self.optimizer.state(parameter):
                yield f"{name}/{key}", self.policy.ranks.run(self._gather_state, name, key)

    def load_optimizer(self, file: Path) -> None:
        """Put back the state that `optimizer_tensors` gave, on however many ranks, from a safetensors file."""
        self.policy.ranks.run(self._load_state, file)

    # Methods below that take shares, and those that `ranks.run` names, run on every rank at the same time.

    def _on_shares(
        self, method: Callable[..., list[T]], micro_batches: Sequence[MicroBatch], *arguments: Any
    ) -> list[T]:
        """One result per micro-batch, each from the rank that it was dealt to."""
        size = self.policy.ranks.size
        by_rank = self.policy.ranks.collect(method, deal(micro_batches, size), *arguments)
        return [by_rank[number % size][number // size] for number in range(len(micro_batches))]

    def _score_share(self, shares: list[list[MicroBatch]]) -> list[Floats]:
        share = shares[self.policy.ranks.rank]
        return [self.policy.score(micro_batch).double().cpu().numpy() for micro_batch in share]

    def _backward_share(self, shares: list[list[MicroBatch]], loss: LossName) -> list[Measured]:
        return [self._backward(micro_batch, loss) for micro_batch in shares[self.policy.ranks.rank]]

    def _backward(self, micro_batch: MicroBatch, loss: LossName) -> Measured:
        current, entropy = self.policy.forward(micro_batch)
        compute = self._policy_gradient if loss == "policy_gradient" else self._imitation
        value, columns = compute(micro_batch, current, entropy)
        value.backward()  # type: ignore[no-untyped-call]
        return Measured(value.item(), columns)

    def _policy_gradient(
        self, micro_batch: MicroBatch, current: Tensor, entropy: Tensor
    ) -> tuple[Tensor, dict[str, Floats]]:
        """The clipped loss of a micro-batch; `current` and `entropy` are [S]."""
        config, tensor = self.algorithm_config, self.policy.tensor
        result = policy_gradient_loss(
            current=current,
            behaviour=tensor(micro_batch.column("logprobs")),
            advantages=tensor(micro_batch.column("advantages")),
            weights=tensor(micro_batch.column("weights")),
            scale=tensor(micro_batch.scale),
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
        return result.loss, columns_of(current, entropy, result)

    def _imitation(self, micro_batch: MicroBatch, current: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Floats]]:
        """The cross-entropy of a micro-batch, of which nothing else is reported."""
        weights = self.policy.tensor(micro_batch.column("weights"))
        return sft_loss(current=current, weights=weights, scale=self.policy.tensor(micro_batch.scale)), {}

    def _update(
        self, batch: Batch, loss: LossName, learning_rate: float, seconds: dict[str, float], name: str
    ) -> tuple[BatchReport, list[Measured]]:
        """Accumulate the Batch's gradient and apply it, or skip it if anything is not finite."""
        ranks = self.policy.ranks
        with timed(seconds, "forward_backward"):
            total, measured = self.accumulate(batch, loss)
        with timed(seconds, "optimizer"):
            grad_norm = ranks.run(self._gradient_norm)
            skipped = _why_skipped(total, grad_norm)
            ranks.run(self._finish_update, learning_rate if skipped is None else None)
        self._count_bad(skipped, name)
        report = BatchReport(
            loss=total,
            grad_norm=grad_norm,
            skipped=skipped,
            num_tokens=batch.num_tokens,
            num_trajectories=batch.num_trajectories,
            num_rows=len(batch.rows),
            num_micro_batches=len(batch.micro_batches),
        )
        return report, measured

    def _gradient_norm(self) -> float:
        gradients = [p.grad for p in self.policy.named_parameters().values() if p.grad is not None]
        self._norm = full_tensor(get_total_norm(gradients))
        return float(self._norm)

    def _finish_update(self, learning_rate: float | None) -> None:
        """Apply the gradient, clipped by the norm that was just taken (None: leave the weights), and drop it."""
        if learning_rate is not None:
            parameters = self.policy.named_parameters().values()
            clip_grads_with_norm_(parameters, self.train_config.max_grad_norm, self._norm)
            self.optimizer.step(learning_rate)
        self.optimizer.zero_grad()

    def _gather_state(self, name: str, key: str) -> Tensor:
        return full_tensor(self.optimizer.state(self.policy.model.get_parameter(name))[key])

    def _load_state(self, file: Path) -> None:
        for name_and_key, value in load_file(file).items():
            name, _, key = name_and_key.rpartition("/")
            parameter = self.policy.model.get_parameter(name)
            self.optimizer.state(parameter)[key] = like(value, parameter)

    def _count_bad(self, skipped: str | None, name: str) -> None:
        self.num_bad_updates = 0 if skipped is None else self.num_bad_updates + 1
        if self.num_bad_updates >= self.train_config.max_bad_updates:
            raise BadUpdates(
                f"{self.num_bad_updates} updates in a row were skipped (train.max_bad_updates); "
                f"the last, {name}: {skipped}"
            )


def scheduled_learning_rate(config: TrainConfig, step_ordinal: int) -> float:
    """The learning rate of a step, by its ordinal from 0.

    Rises linearly over `warmup_steps`, reaching the full rate in the first step after them; then constant, or down to 0
    at `steps` (which no step reaches), by a line or half a cosine (arXiv 1608.03983).
    """
    if step_ordinal < config.warmup_steps:
        return config.learning_rate * (step_ordinal + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return config.learning_rate
    done = (step_ordinal - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    done = min(done, 1.0)
    factor = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * factor


def _why_skipped(loss: float, grad_norm: float) -> str | None:
    """Why an update may not be applied, or None."""
    if not math.isfinite(loss):
        return f"loss is {loss}"
    if not math.isfinite(grad_norm):
        return f"gradient norm is {grad_norm}"
    return None


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the wall time of a block to `seconds[phase]`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - started
