"""Packing: which Rows share what, and what the loss divides by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch.packing import make_batches
from agentrl.batch.rows import Row, build_rows

from .builders import branches, make_sample, make_turn, one_turn


def rows_of_lengths(lengths: list[int]) -> list[Row]:
    return [row for i, n in enumerate(lengths) for row in build_rows(one_turn(str(i), 1.0, num_sampled=n - 2))]


def test_a_micro_batch_of_two_rows() -> None:
    long = make_sample([make_turn(0, None, 0, [1, 2], [10, 11]), make_turn(1, 0, 4, [3], [12])], id="long")
    rows = build_rows(long) + build_rows(one_turn("short", 1.0))
    (batch,) = make_batches(rows, updates_per_step=1, micro_batch_tokens=16, aggregation="trajectory")
    (packed,) = batch.micro_batches
    assert packed.ids.tolist() == [1, 2, 10, 11, 3, 12, 1, 2, 10, 11]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert packed.sources.tolist() == [1, 2, 4, 7, 8]
    assert packed.targets.tolist() == [10, 11, 12, 10, 11]
    assert packed.row_number.tolist() == [0, 0, 0, 1, 1]
    assert packed.row_place.tolist() == [2, 3, 5, 2, 3]
    assert packed.scale.tolist() == [1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4]
    assert (batch.num_tokens, batch.num_trajectories) == (5, 2)


def test_first_fit_decreasing_and_a_longer_row_alone() -> None:
    rows = rows_of_lengths([4, 12, 3, 6, 5])
    (batch,) = make_batches(rows, updates_per_step=1, micro_batch_tokens=10, aggregation="token")
    assert [[len(row) for row in m.rows] for m in batch.micro_batches] == [[12], [6, 4], [5, 3]]


def test_batches_keep_trajectories_whole_and_in_order() -> None:
    rows = [row for i in range(5) for row in build_rows(branches(str(i), 1.0, num_branches=1 + i % 2))]
    batches = make_batches(rows, updates_per_step=2, micro_batch_tokens=8, aggregation="token")
    assert [sorted({row.trajectory for row in batch.rows}) for batch in batches] == [["0", "1"], ["2", "3", "4"]]
    assert sum(len(batch.rows) for batch in batches) == len(rows)
    assert len(make_batches(rows, updates_per_step=9, micro_batch_tokens=8, aggregation="token")) == 5


def test_rows_without_weight_are_in_no_batch() -> None:
    rows = rows_of_lengths([4, 4])
    rows[0].silence("because")
    (batch,) = make_batches(rows, updates_per_step=2, micro_batch_tokens=8, aggregation="token")
    assert batch.rows == [rows[1]]
    rows[1].silence("because")
    assert make_batches(rows, updates_per_step=2, micro_batch_tokens=8, aggregation="token") == []


def test_ids_of_weight_0_are_not_selected() -> None:
    (row,) = build_rows(one_turn("a", 1.0, num_sampled=3))
    row.silence("because", row.ids == 11)
    (batch,) = make_batches([row], updates_per_step=1, micro_batch_tokens=8, aggregation="token")
    assert batch.micro_batches[0].targets.tolist() == [10, 12]
    assert batch.micro_batches[0].scale.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
def test_d08_weight_of_an_id_by_aggregation(aggregation: str) -> None:
    """A failure of 10 ids beside one of 1000: per id equal, or per trajectory equal."""
    rows = rows_of_lengths([12, 1002])
    (batch,) = make_batches(rows, updates_per_step=1, micro_batch_tokens=64, aggregation=aggregation)
    scale = {m.rows[0].trajectory: float(m.scale[0]) for m in batch.micro_batches}
    expected = {"0": 1 / 1010, "1": 1 / 1010} if aggregation == "token" else {"0": 1 / 20, "1": 1 / 2000}
    assert scale == pytest.approx(expected)


@given(
    st.lists(st.integers(3, 20), min_size=1, max_size=20), st.integers(1, 24), st.sampled_from(["token", "trajectory"])
)
def test_packing_loses_nothing_and_scales_sum_to_1(lengths: list[int], budget: int, aggregation: str) -> None:
    rows = rows_of_lengths(lengths)
    (batch,) = make_batches(rows, updates_per_step=1, micro_batch_tokens=budget, aggregation=aggregation)
    assert sorted(id(row) for row in batch.rows) == sorted(id(row) for row in rows)
    for packed in batch.micro_batches:
        assert len(packed.rows) == 1 or len(packed.ids) <= budget
        assert packed.ids[np.flatnonzero(packed.position_ids == 0)].tolist() == [1] * len(packed.rows)
    assert sum(packed.scale.sum() for packed in batch.micro_batches) == pytest.approx(1.0)
