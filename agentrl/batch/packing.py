"""Rows → Batches: which Rows share an update, which share a forward pass, and what the loss divides by.

The loss of a Batch is sum(scale * weight * token_loss) over its selected ids. `scale` holds global denominators, so
that any split in micro-batches, any packing or padding gives the same gradient (G1):

* aggregation "token": 1 / (weight of all ids in the Batch). Long trajectories count more; per id all are equal
  (DAPO, arXiv 2503.14476, section 3.3);
* aggregation "trajectory": 1 / (trajectories * weight of this trajectory's ids), however many Rows it is split in.

Left out: balancing the Batches of a step by tokens. Trajectories are split by count and in order, so that the samples
of a group, whose advantages sum to 0, mostly stay in one update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from agentrl.batch.rows import Bools, Floats, Ints, Row

Aggregation = Literal["token", "trajectory"]
Selection = Callable[[Row], Bools]


@dataclass(kw_only=True, slots=True, eq=False)
class MicroBatch:
    """Rows laid end to end for one forward pass: T ids, of which S are selected."""

    rows: list[Row]
    ids: Ints
    """[T]"""
    position_ids: Ints
    """[T], from 0 in each Row: attention is cut where it restarts."""
    sources: Ints
    """[S], places in [T] whose hidden state predicts the selected id: one before it."""
    row_number: Ints
    """[S], index into `rows`."""
    row_place: Ints
    """[S], place of the selected id within its Row."""
    scale: Floats
    """[S], the global denominator's inverse."""

    @property
    def targets(self) -> Ints:
        """[S], the selected ids."""
        return self.ids[self.sources + 1]

    def column(self, name: Literal["weights", "logprobs", "temperature", "advantages", "proximal"]) -> Floats:
        """[S], a column of the Rows at the selected ids."""
        parts = [getattr(row, name)[self.row_place[self.row_number == i]] for i, row in enumerate(self.rows)]
        return np.concatenate(parts) if parts else np.zeros(0)


@dataclass(kw_only=True, slots=True, eq=False)
class Batch:
    """One optimizer update."""

    micro_batches: list[MicroBatch]
    num_tokens: int
    """Ids that count in the loss."""
    num_trajectories: int

    @property
    def rows(self) -> list[Row]:
        """The Rows in packed order; a Row's index here is its `position`."""
        return [row for micro_batch in self.micro_batches for row in micro_batch.rows]


def make_batches(
    rows: Sequence[Row], *, updates_per_step: int, micro_batch_tokens: int, aggregation: Aggregation
) -> list[Batch]:
    """Split the Rows that have any weight into at most `updates_per_step` Batches, and pack each.

    All Rows of a trajectory share a Batch. Depends on nothing but its arguments, so scoring and training use the same
    packing (C07). Returns no Batch if no Row has weight.
    """
    by_trajectory: dict[str, list[Row]] = {}
    for row in rows:
        if row.live:
            by_trajectory.setdefault(row.trajectory, []).append(row)
    trajectories = list(by_trajectory.values())
    num_batches = min(updates_per_step, len(trajectories))
    bounds = [len(trajectories) * i // num_batches for i in range(num_batches + 1)] if num_batches else [0]
    return [
        _batch([row for part in trajectories[start:end] for row in part], micro_batch_tokens, aggregation)
        for start, end in pairwise(bounds)
    ]


def pack(
    rows: Sequence[Row], micro_batch_tokens: int, selection: Selection, scale: Callable[[Row], float]
) -> list[MicroBatch]:
    """Pack Rows under a token budget, first-fit decreasing; a longer Row goes alone."""
    bins: list[list[Row]] = []
    free: list[int] = []
    for row in sorted(rows, key=len, reverse=True):
        place = next((i for i, left in enumerate(free) if len(row) <= left), None)
        if place is None:
            bins.append([row])
            free.append(micro_batch_tokens - len(row))
        else:
            bins[place].append(row)
            free[place] -= len(row)
    return [_micro_batch(packed, selection, scale) for packed in bins]


def deal(micro_batches: Sequence[MicroBatch], num_ranks: int) -> list[list[MicroBatch]]:
    """One share per rank, all of equal length: micro-batch i goes to rank i % num_ranks.

    FSDP's collectives need the same number of passes on every rank, so what is missing at the end is padding.
    """
    missing = -len(micro_batches) % num_ranks
    padded = [*micro_batches, *(padding() for _ in range(missing))]
    return [padded[rank::num_ranks] for rank in range(num_ranks)]


def padding() -> MicroBatch:
    """A micro-batch that counts nothing. One id is selected, so that every weight, the head's too, gets a gradient."""
    nothing = np.zeros(2)
    row = Row(
        trajectory="padding",
        end_turn=-1,
        group=None,
        grade_id=None,
        ids=np.zeros(2, np.int64),
        mask=np.zeros(2, np.int8),
        weights=nothing,
        logprobs=nothing,
        versions=np.full(2, -1),
        temperature=np.ones(2),
        turn_index=np.zeros(2, np.int64),
        rewards=nothing,
        advantages=nothing,
        proximal=nothing,
    )
    return _micro_batch([row], lambda _: np.array([False, True]), lambda _: 0.0)


def trained_ids(row: Row) -> Bools:
    """[T], the ids that count in the loss."""
    chosen: Bools = row.weights != 0
    return chosen


def engine_ids(row: Row) -> Bools:
    """[T], the ids that have a behaviour logprob, whatever their weight."""
    return ~np.isnan(row.logprobs)


def _batch(rows: list[Row], micro_batch_tokens: int, aggregation: Aggregation) -> Batch:
    weight: dict[str, float] = {}
    for row in rows:
        weight[row.trajectory] = weight.get(row.trajectory, 0.0) + float(row.weights.sum())
    total = sum(weight.values())

    def scale(row: Row) -> float:
        return 1.0 / total if aggregation == "token" else 1.0 / (len(weight) * weight[row.trajectory])

    return Batch(
        micro_batches=pack(rows, micro_batch_tokens, trained_ids, scale),
        num_tokens=sum(int(np.count_nonzero(row.weights)) for row in rows),
        num_trajectories=len(weight),
    )


def _micro_batch(rows: list[Row], selection: Selection, scale: Callable[[Row], float]) -> MicroBatch:
    places = [np.flatnonzero(selection(row)) for row in rows]
    counts = [len(place) for place in places]
    starts = np.cumsum([0] + [len(row) for row in rows[:-1]])
    row_number = np.repeat(np.arange(len(rows)), counts)
    row_place = np.concatenate(places)
    return MicroBatch(
        rows=rows,
        ids=np.concatenate([row.ids for row in rows]),
        position_ids=np.concatenate([np.arange(len(row)) for row in rows]),
        sources=starts[row_number] + row_place - 1,
        row_number=row_number,
        row_place=row_place,
        scale=np.repeat([scale(row) for row in rows], counts),
    )
