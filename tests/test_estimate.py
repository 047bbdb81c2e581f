"""Estimates against brute force and textbook figures."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.estimate import (
    clustered_error,
    clustered_interval,
    mean_of,
    pass_at_k,
    share_interval,
    wilson_interval,
)

SHARES = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=12)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_choices_of_k_samples_that_hold_a_solved_one(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    chosen = [any(index < c for index in choice) for choice in combinations(range(n), k)]
    assert pass_at_k(n, c, k) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


@given(st.integers(1, 3000), st.data())
def test_pass_at_k_is_exact_where_binomials_overflow(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_pass_at_k_that_is_not_defined_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"not defined"):
        pass_at_k(n, c, k)


def test_wilson_as_in_the_textbook() -> None:
    """Newcombe 1998, Statistics in Medicine 17, table I, method 3: 81/263, 15/148, 0/20, 1/29."""
    for solved, num, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
                                   (1, 29, 0.0061, 0.1718)]:  # fmt: skip
        assert wilson_interval(solved / num, num) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 400), st.data())
def test_wilson_holds_the_shares_that_a_test_would_not_reject(num: int, data: st.DataObject) -> None:
    """It is the set of p with |share - p| <= z * sqrt(p (1 - p) / num): both ends solve the equation."""
    share = data.draw(st.integers(0, num)) / num
    low, high = wilson_interval(share, num)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1 and end != share:
            z = abs(share - end) / math.sqrt(end * (1 - end) / num)
            assert z == pytest.approx(1.959964, abs=1e-4)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=2, max_size=20))
def test_with_equal_counts_the_clustered_error_is_that_of_the_tasks_means(clusters: list[list[float]]) -> None:
    means = [statistics.fmean(cluster) for cluster in clusters]
    expected = statistics.stdev(means) / math.sqrt(len(means))
    assert clustered_error(clusters) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_with_one_value_per_task_the_clustered_error_is_the_usual_one(values: list[float]) -> None:
    expected = statistics.stdev(values) / math.sqrt(len(values))
    assert clustered_error([[value] for value in values]) == pytest.approx(expected, abs=1e-9)


def test_the_clustered_error_agrees_with_resampling_whole_tasks() -> None:
    generator = np.random.default_rng(0)
    chances = generator.beta(1, 1, 80)
    clusters = [[float(generator.random() < p) for _ in range(1 + t % 5)] for t, p in enumerate(chances)]
    means = []
    for _ in range(4000):
        picked = [clusters[i] for i in generator.integers(0, len(clusters), len(clusters))]
        means.append(np.mean([value for cluster in picked for value in cluster]))
    error = clustered_error(clusters)
    assert error == pytest.approx(np.std(means), rel=0.05)
    # Samples of one task are alike, so taking all for independent would promise too much.
    values = [value for cluster in clusters for value in cluster]
    assert error is not None and error > 1.2 * statistics.stdev(values) / math.sqrt(len(values))


@given(SHARES)
def test_a_share_lies_in_its_interval_and_the_interval_in_0_to_1(clusters: list[list[float]]) -> None:
    values = [value for cluster in clusters for value in cluster]
    bounds = share_interval(clusters)
    assert bounds is not None and 0 <= bounds.low <= statistics.fmean(values) + 1e-12
    assert statistics.fmean(values) - 1e-12 <= bounds.high <= 1 and bounds.low < bounds.high


def test_which_interval_a_share_gets() -> None:
    assert share_interval([[1.0], [0.0], [1.0], [1.0]]) == wilson_interval(0.75, 4)
    assert share_interval([[0.0] * 8] * 5) == wilson_interval(0.0, 5)  # not 40 trials, and not certainty
    mixed = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    assert share_interval(mixed) == clustered_interval(mixed)
    assert share_interval([[], []]) is None
    assert clustered_interval([[1.0, 2.0]]) is None  # one task says nothing of how tasks differ


def test_l03_a_mean_leaves_nan_out_and_counts_and_nothing_has_no_mean() -> None:
    assert mean_of([0.5, math.nan, 0.8]) == pytest.approx((0.65, 2))
    assert mean_of([None, 1.0]) == (1.0, 1)
    assert mean_of([math.nan, None]) is None and mean_of([]) is None
