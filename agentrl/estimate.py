"""Estimates from samples: means that know their count, pass@k, and how sure one can be of a mean.

Letters: T tasks, n samples of one task, c of them solved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

CONFIDENCE = 0.95


class Mean(NamedTuple):
    """A mean and how many values it is over."""

    mean: float
    num: int


class Interval(NamedTuple):
    """Holds the true value in 95 of 100 repetitions, if the estimate's assumptions hold."""

    low: float
    high: float


def mean_of(values: Iterable[float | None]) -> Mean | None:
    """The mean over the values that are there (neither None nor NaN); None if there are none: never NaN, never 0."""
    present = [value for value in values if value is not None and not math.isnan(value)]
    return Mean(math.fsum(present) / len(present), len(present)) if present else None


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """The chance that at least one of k samples solves the task: 1 - C(n-c, k) / C(n, k).

    Unbiased, where 1 - (1 - c/n)^k is not. Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
    arXiv 2107.03374, section 2.1: as a product, since the binomials overflow. Raises ValueError unless
    1 <= k <= n and 0 <= c <= n.
    """
    if not (1 <= k <= num_samples and 0 <= num_solved <= num_samples):
        raise ValueError(f"pass@{k} of {num_solved} solved of {num_samples} samples is not defined")
    if num_samples - num_solved < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(num_samples - num_solved + 1, num_samples + 1))


def wilson_interval(share: float, num: float, confidence: float = CONFIDENCE) -> Interval:
    """Of a share of `num` independent trials. Not of width 0 for a share of 0 or 1, and inside [0, 1].

    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22(158).
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (share + z * z / (2 * num)) / (1 + z * z / num)
    half = z / (1 + z * z / num) * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    # Rounding must not cut the share itself off: at 0 and 1 the bound is the share.
    return Interval(min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def clustered_error(clusters: Sequence[Sequence[float]]) -> float | None:
    """The standard error of the mean of all values, where those of one cluster (a task) hang together.

    sqrt(T/(T-1) * sum over t of (sum over i of (x_ti - mean))^2) / N. Liang & Zeger 1986, Biometrika 73(1); for
    evaluations: Miller 2024, "Adding Error Bars to Evals", arXiv 2411.00640, section 2.2. None for fewer than two
    clusters: nothing says how tasks differ.
    """
    filled = [cluster for cluster in clusters if cluster]
    if len(filled) < 2:
        return None
    num = sum(map(len, filled))
    mean = math.fsum(math.fsum(cluster) for cluster in filled) / num
    squares = math.fsum(math.fsum(value - mean for value in cluster) ** 2 for cluster in filled)
    return math.sqrt(squares * len(filled) / (len(filled) - 1)) / num


def clustered_interval(clusters: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Interval | None:
    """Of the mean of all values, by `clustered_error` and the normal distribution.

    None where it can't be told: fewer than two clusters, or all of them alike. With few tasks (< 30) it is too narrow.
    """
    error = clustered_error(clusters)
    values = [value for cluster in clusters for value in cluster]
    if error is None or error <= 1e-9 * max(map(abs, values)):  # the rest is rounding
        return None
    half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    mean = math.fsum(values) / len(values)
    return Interval(mean - half, mean + half)


def share_interval(clusters: Sequence[Sequence[float]]) -> Interval | None:
    """Of a share (values in [0, 1]) with one or more values per task; None for no values.

    One value of 0 or 1 per task: Wilson's. Several: by cluster; where all tasks agree, each counts as one trial of
    Wilson's, so that 0 of 5 tasks is not taken for certainty.
    """
    filled = [cluster for cluster in clusters if cluster]
    mean = mean_of(value for cluster in filled for value in cluster)
    if mean is None:
        return None
    share = min(1.0, max(0.0, mean.mean))
    is_plain = all(len(cluster) == 1 and cluster[0] in (0.0, 1.0) for cluster in filled)
    spread = None if is_plain else clustered_interval(filled)
    if spread is None:
        return wilson_interval(share, len(filled))
    return Interval(max(0.0, spread.low), min(1.0, spread.high))
