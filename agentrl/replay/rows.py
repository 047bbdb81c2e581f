"""The Rows that a stored step trained on, built again, and what it made of each sampled id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.batch.rows import Row, WeightRun, build_rows
from agentrl.store.records import StepRow, StepUse
from agentrl.types import Sample, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """One sampled id in one step."""

    advantage: float
    weight: float
    reason: str | None
    """Why it has this weight; None: nothing changed it."""


def rebuild(trajectory: Trajectory, stored: Iterable[StepRow]) -> list[Row]:
    """All Rows of a trajectory; those that a step stored have its advantages and weights (S3).

    Their rewards stay NaN: a step is computed from advantages. Raises RowError where lengths don't agree.
    """
    by_end_turn = {row.end_turn: row for row in stored}
    rows = build_rows(Sample(trajectory=trajectory, grade=None))
    for row in rows:
        if its := by_end_turn.get(row.end_turn):
            row.restore(
                its.advantage, [WeightRun(start, end, w, reason or "") for start, end, w, reason in its.weights]
            )
            row.grade_id = its.grade_id
    return rows


def shown_step(uses: Sequence[StepUse]) -> list[StepUse]:
    """The uses by the one step that is shown: the last on a surviving line, else the last."""
    chosen = ([use for use in uses if not use.abandoned] or list(uses))[-1:]
    return [use for use in uses if chosen and (use.run, use.step) == (chosen[0].run, chosen[0].step)]


def learned(trajectory: Trajectory, stored: Sequence[StepRow]) -> dict[int, list[Learned | None]]:
    """By turn, what a step made of each sampled id; None where it had no Row that counts the id."""
    in_step = {row.end_turn for row in stored}
    by_turn: dict[int, list[Learned | None]] = defaultdict(list)
    # Each sampled id counts in the first Row that holds it, so the Rows in turn order give a turn's ids in order.
    for row in rebuild(trajectory, stored) if stored else ():
        places = row.mask.nonzero()[0].tolist()
        values: list[Learned | None] = _values(row, places) if row.end_turn in in_step else [None] * len(places)
        for place, value in zip(places, values, strict=True):
            by_turn[int(row.turn_index[place])].append(value)
    return by_turn


def _values(row: Row, places: list[int]) -> list[Learned | None]:
    reasons: list[str | None] = [None] * len(row)
    for run in row.runs:
        reasons[run.start : run.end] = [run.reason] * (run.end - run.start)
    return [Learned(advantage=row.advantage, weight=float(row.weights[i]), reason=reasons[i]) for i in places]
