"""The trainer: Rows in, updated weights and a report out.

A step is one or more Batches, each one update. Nothing here draws random numbers. Left out: a reference model and
its KL term; accumulation over ranks (one rank for now).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from agentrl.batch.packing import Batch, MicroBatch, engine_ids, make_batches, pack
from agentrl.batch.rows import Row
from agentrl.config import AlgorithmConfig, TrainConfig
from agentrl.errors import TrainingError
from agentrl.train.losses import policy_gradient_loss, sft_loss
from agentrl.train.optimizer import Optimizer
from agentrl.train.policy import Policy, full_tensor
from agentrl.train.report import BatchReport, StepReport, TokenLog, mismatch_metrics, row_reports, step_metrics

MicroBatchLoss = Callable[[MicroBatch, Tensor, Tensor], Tensor]
"""(micro-batch, current logprobs [S], entropies [S]) → scalar."""


class Trainer:
    """Owns the optimizer of one policy."""

    def __init__(self, policy: Policy, train_config: TrainConfig, algorithm_config: AlgorithmConfig) -> None:
        self.policy = policy
        self.train_config = train_config
        self.algorithm_config = algorithm_config
        self.num_bad_updates = 0
        """Updates in a row that were not finite."""
        self.optimizer = Optimizer(policy, train_config)

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
        behaviour, proximal = [np.zeros(0)], [np.zeros(0)]
        for micro_batch in micro_batches:
            values = self.policy.score(micro_batch).double().cpu().numpy()
            for number, row in enumerate(micro_batch.rows):
                here = micro_batch.row_number == number
                row.proximal[micro_batch.row_place[here]] = values[here]
            behaviour.append(micro_batch.column("logprobs"))
            proximal.append(values)
        return mismatch_metrics(np.concatenate(behaviour), np.concatenate(proximal))

    def step(self, rows: Sequence[Row], step_ordinal: int) -> StepReport:
        """Train on the Rows that have weight. `step_ordinal` (from 0) is the step's place on the surviving line.

        Without any weight there is no update, and the report says `no_signal`. An update whose loss or gradient is not
        finite is skipped and the next Batch goes on; `max_bad_updates` in a row raise TrainingError (G3).
        """
        seconds: dict[str, float] = {}
        with timed(seconds, "pack"):
            batches = self.batches(rows)
        learning_rate = scheduled_learning_rate(self.train_config, step_ordinal)
        log = TokenLog()
        reports = []
        for number, batch in enumerate(batches):
            loss = self._policy_gradient(log, number)
            reports.append(self._update(batch, loss, learning_rate, seconds, f"step {step_ordinal}, batch {number}"))
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

        def loss(micro_batch: MicroBatch, current: Tensor, entropy: Tensor) -> Tensor:
            weights = self.policy.tensor(micro_batch.column("weights"))
            return sft_loss(current=current, weights=weights, scale=self.policy.tensor(micro_batch.scale))

        seconds: dict[str, float] = {}
        learning_rate = scheduled_learning_rate(self.train_config, step_ordinal)
        report = self._update(batches[0], loss, learning_rate, seconds, f"supervised step {step_ordinal}")
        return StepReport(
            ordinal=step_ordinal,
            learning_rate=learning_rate,
            batches=[report],
            rows=row_reports(rows, batches, TokenLog()),
            metrics={"loss": report.loss, "grad_norm": report.grad_norm, "num_tokens": report.num_tokens},
            seconds=seconds,
        )

    def _policy_gradient(self, log: TokenLog, batch_number: int) -> MicroBatchLoss:
        """The clipped loss of a micro-batch, which also writes to the log."""
        config, tensor = self.algorithm_config, self.policy.tensor

        def loss(micro_batch: MicroBatch, current: Tensor, entropy: Tensor) -> Tensor:
            result = policy_gradient_loss(
                current=current,
                behaviour=tensor(micro_batch.column("logprobs")),
                advantages=tensor(micro_batch.column("advantages")),
                weights=tensor(micro_batch.column("weights")),
                scale=tensor(micro_batch.scale),
                clip_low=config.clip_low,
                clip_high=config.clip_high,
            )
            log.add(batch_number, micro_batch, current, entropy, result)
            return result.loss

        return loss

    def _update(
        self, batch: Batch, loss: MicroBatchLoss, learning_rate: float, seconds: dict[str, float], name: str
    ) -> BatchReport:
        """Accumulate the Batch's gradient and apply it, or skip it if anything is not finite."""
        with timed(seconds, "forward_backward"):
            total = self.accumulate(batch, loss)
        with timed(seconds, "optimizer"):
            grad_norm = self._gradient_norm()
            skipped = _why_skipped(total, grad_norm)
            if skipped is None:
                self._apply(learning_rate, grad_norm)
            self.optimizer.zero_grad()
        self._count_bad(skipped, name)
        return BatchReport(
            loss=total,
            grad_norm=float(grad_norm),
            skipped=skipped,
            num_tokens=batch.num_tokens,
            num_trajectories=batch.num_trajectories,
            num_rows=len(batch.rows),
            num_micro_batches=len(batch.micro_batches),
        )

    def accumulate(self, batch: Batch, loss: MicroBatchLoss) -> float:
        """Add the gradient of the whole Batch's loss to the parameters' `grad`; returns the loss."""
        total = 0.0
        for micro_batch in batch.micro_batches:
            current, entropy = self.policy.forward(micro_batch)
            value = loss(micro_batch, current, entropy)
            value.backward()  # type: ignore[no-untyped-call]
            total += value.item()
        return total

    def _gradient_norm(self) -> Tensor:
        gradients = [p.grad for p in self.policy.named_parameters().values() if p.grad is not None]
        return full_tensor(get_total_norm(gradients))

    def _apply(self, learning_rate: float, grad_norm: Tensor) -> None:
        clip_grads_with_norm_(self.policy.named_parameters().values(), self.train_config.max_grad_norm, grad_norm)
        self.optimizer.step(learning_rate)

    def _count_bad(self, skipped: str | None, name: str) -> None:
        self.num_bad_updates = 0 if skipped is None else self.num_bad_updates + 1
        if self.num_bad_updates >= self.train_config.max_bad_updates:
            raise TrainingError(
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


def _why_skipped(loss: float, grad_norm: Tensor) -> str | None:
    """Why an update may not be applied, or None."""
    if not math.isfinite(loss):
        return f"loss is {loss}"
    if not math.isfinite(float(grad_norm)):
        return f"gradient norm is {float(grad_norm)}"
    return None


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add the wall time of a block to `seconds[phase]`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - started
