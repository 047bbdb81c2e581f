"""What a step reports. Every mean is over the ids that count in the loss, and over nothing else (L04)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from agentrl.batch.packing import Batch, MicroBatch
from agentrl.batch.rows import Floats, Ints, Row
from agentrl.train.losses import PolicyLoss
from agentrl.train.trend import mismatch_by_place


@dataclass(kw_only=True, slots=True)
class BatchReport:
    """One update, applied or skipped."""

    loss: float
    """What was differentiated: summed over micro-batches with global denominators (D06)."""
    grad_norm: float
    """Before clipping."""
    skipped: str | None
    """Why weights and optimizer were left as they were, or None."""
    num_tokens: int
    num_trajectories: int
    num_rows: int
    num_micro_batches: int


@dataclass(kw_only=True, slots=True)
class RowReport:
    """What a step did with one Row. Statistics are NaN where the Row had no weight."""

    trajectory: str
    end_turn: int
    batch: int | None
    """None: the Row had no weight, so it was in no Batch."""
    position: int | None
    """Place in the Batch's packed order."""
    num_tokens: int = 0
    ratio_mean: float = math.nan
    """Of the ratio to behaviour, before the Batch's update."""
    ratio_max: float = math.nan
    clip_share: float = math.nan


@dataclass(kw_only=True, slots=True)
class StepReport:
    """One step. `loss` and `grad_norm` are means over applied updates, NaN if there are none."""

    ordinal: int
    learning_rate: float
    batches: list[BatchReport]
    rows: list[RowReport]
    """As many as Rows were given, in their order."""
    metrics: dict[str, float]
    seconds: dict[str, float]
    """By phase: pack, forward_backward, optimizer."""

    @property
    def no_signal(self) -> bool:
        """No Row had weight, so there was nothing to update from."""
        return not self.batches

    @property
    def num_updates(self) -> int:
        """Updates that were applied. 0: the weights are as before."""
        return sum(batch.skipped is None for batch in self.batches)

    @property
    def skipped(self) -> dict[int, str]:
        """Reason by Batch of the updates that were not applied."""
        return {i: batch.skipped for i, batch in enumerate(self.batches) if batch.skipped is not None}

    @property
    def loss(self) -> float:
        """Mean over applied updates."""
        return self.metrics["loss"]

    @property
    def grad_norm(self) -> float:
        """Mean over applied updates, before clipping."""
        return self.metrics["grad_norm"]


@dataclass(kw_only=True, slots=True)
class _Entry:
    """The selected ids of one micro-batch, each array [S]."""

    batch: int
    micro_batch: MicroBatch
    columns: dict[str, Floats]


@dataclass(slots=True)
class TokenLog:
    """What was measured of every id that counted in a step."""

    entries: list[_Entry] = field(default_factory=list)

    def add(self, batch: int, micro_batch: MicroBatch, columns: dict[str, Floats]) -> None:
        """Take the `columns_of` a micro-batch."""
        columns = columns | {"proximal": micro_batch.column("proximal")}
        self.entries.append(_Entry(batch=batch, micro_batch=micro_batch, columns=columns))

    def column(self, name: str, batch: int | None = None) -> Floats:
        """One value per id that counted, of one Batch or of the step."""
        parts = [entry.columns[name] for entry in self.entries if batch is None or entry.batch == batch]
        return np.concatenate(parts) if parts else np.zeros(0)


def columns_of(current: Tensor, entropy: Tensor, result: PolicyLoss) -> dict[str, Floats]:
    """What is measured of a micro-batch's ids, tensors each [S], as numpy."""
    measured = {
        "logprob": current,
        "entropy": entropy,
        "ratio": result.ratio,
        "clipped": result.clipped,
        "kl": result.kl,
    }
    return {name: tensor.detach().double().cpu().numpy() for name, tensor in measured.items()}


def row_reports(rows: Sequence[Row], batches: Sequence[Batch], log: TokenLog) -> list[RowReport]:
    """One report per Row, in the order given."""
    reports = {
        id(row): RowReport(trajectory=row.trajectory, end_turn=row.end_turn, batch=number, position=position)
        for number, batch in enumerate(batches)
        for position, row in enumerate(batch.rows)
    }
    for entry in log.entries:
        for number, row in enumerate(entry.micro_batch.rows):
            here: Ints = np.flatnonzero(entry.micro_batch.row_number == number)
            ratio, clipped = entry.columns["ratio"][here], entry.columns["clipped"][here]
            report = reports[id(row)]
            report.num_tokens = len(here)
            report.ratio_mean, report.ratio_max = float(ratio.mean()), float(ratio.max())
            report.clip_share = float(clipped.mean())
    return [
        reports.get(id(row)) or RowReport(trajectory=row.trajectory, end_turn=row.end_turn, batch=None, position=None)
        for row in rows
    ]


def step_metrics(reports: Sequence[BatchReport], log: TokenLog) -> dict[str, float]:
    """The step's numbers; NaN where nothing was measured."""
    applied = [report for report in reports if report.skipped is None]
    ratio = log.column("ratio")
    return {
        "loss": _mean([report.loss for report in applied]),
        "grad_norm": _mean([report.grad_norm for report in applied]),
        "num_updates": len(applied),
        "num_skipped_updates": len(reports) - len(applied),
        "num_tokens": len(ratio),
        "num_trajectories": sum(report.num_trajectories for report in reports),
        "num_micro_batches": sum(report.num_micro_batches for report in reports),
        "ratio_mean": _mean(ratio),
        "ratio_max": float(ratio.max()) if len(ratio) else math.nan,
        "clip_share": _mean(log.column("clipped")),
        "kl": _mean(log.column("kl")),
        "entropy": _mean(log.column("entropy")),
        "logprob_mean": _mean(log.column("logprob")),
        "first_update_ratio_error": _first_update_ratio_error(log),
    }


def mismatch_metrics(behaviour: Floats, proximal: Floats, places: Ints) -> dict[str, float]:
    """How far apart sampler and trainer are on the same ids (G2); all [S], `places` in the Rows. NaN for no ids."""
    difference = proximal - behaviour
    size = np.abs(difference)
    # The same bound as in the loss, so that one wild id can't make the mean infinite.
    ratio = np.exp(np.clip(difference, -20.0, 20.0))
    return {
        "mismatch_num_tokens": len(difference),
        "mismatch_logprob_max": float(size.max()) if len(size) else math.nan,
        "mismatch_logprob_mean": _mean(size),
        "mismatch_kl": _mean(ratio - 1.0 - np.log(ratio)),
        "mismatch_ratio_error": _mean(np.abs(ratio - 1.0)),
        **mismatch_by_place(places, size),
    }


def _first_update_ratio_error(log: TokenLog) -> float:
    """Mean |current / proximal - 1| of the first Batch: 0 to rounding, as nothing was updated in between (C07)."""
    difference = log.column("logprob", batch=0) - log.column("proximal", batch=0)
    return _mean(np.abs(np.expm1(difference)))


def _mean(values: Floats | Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
