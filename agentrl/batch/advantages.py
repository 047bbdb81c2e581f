"""Group-relative advantages (GRPO, DeepSeekMath, arXiv 2402.03300, section 4.1), one per trajectory.

A trajectory's advantage is its reward less the mean of its group's measured rewards, by default divided by their
standard deviation. What is computed over trajectories is never computed over Rows: a trajectory of five branches counts
once in the mean (D12). Three choices that papers leave open:

* the deviation is the population's (divide by n, not n - 1): it is defined for every group, and the mean square of a
  group's advantages is 1 whatever its size, also where samples could not be measured;
* a group of equal rewards has no signal: its ids get weight 0 ("zero_variance") rather than advantage 0, so they don't
  dilute the denominator of the loss (D07);
* fewer than two measured samples: the group is dropped ("too_few_measured"), never NaN (D02).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl.batch.rows import Row
from agentrl.errors import RowError
from agentrl.types import Group

EPSILON = 1e-6
"""Added to the standard deviation, in units of reward."""
TOLERANCE = 1e-8
"""Rewards that are no further apart are equal, in units of the larger of 1 and the largest of them."""
TOO_FEW_MEASURED = "too_few_measured"
ZERO_VARIANCE = "zero_variance"
UNMEASURED = "unmeasured"


@dataclass(kw_only=True, slots=True)
class AdvantageReport:
    """What became of a step's groups. Reward statistics are over measured trajectories, not Rows."""

    num_groups: int = 0
    num_dropped_groups: int = 0
    """Fewer than two measured samples."""
    num_zero_variance_groups: int = 0
    num_all_zero_groups: int = 0
    """Of these, groups whose rewards are all 0: too hard."""
    num_all_one_groups: int = 0
    """Of these, groups whose rewards are all 1: too easy."""
    num_trajectories: int = 0
    num_unmeasured: int = 0
    reward_mean: float = math.nan
    reward_std: float = math.nan
    """Of the population, over all groups."""
    reward_min: float = math.nan
    reward_max: float = math.nan
    advantages: dict[str, float] = field(default_factory=dict)
    """By trajectory; 0.0 where its group has no signal. Unmeasured trajectories are absent."""
    group_reasons: dict[str, str] = field(default_factory=dict)
    """By group, why it has no signal; groups with a signal are absent."""

    def metrics(self) -> dict[str, float]:
        """The numbers to log; how much was left out is counted by who may have left out groups before."""
        return {
            "reward_mean": self.reward_mean,
            "reward_std": self.reward_std,
            "reward_min": self.reward_min,
            "reward_max": self.reward_max,
            "num_groups": self.num_groups,
            "num_zero_variance_groups": self.num_zero_variance_groups,
            "zero_variance_share": self._share(self.num_zero_variance_groups),
            "all_zero_share": self._share(self.num_all_zero_groups),
            "all_one_share": self._share(self.num_all_one_groups),
            "num_trajectories": self.num_trajectories,
        }

    def _share(self, num_groups: int) -> float:
        return num_groups / self.num_groups if self.num_groups else math.nan


def assign_advantages(
    groups: Sequence[Group],
    rows: Sequence[Row],
    *,
    normalize_std: bool = True,
    shuffle_generator: np.random.Generator | None = None,
) -> AdvantageReport:
    """Fill the Rows' advantages, and give weight 0 with a reason to those without a signal.

    `rows` are the Rows of the groups' trajectories; a Row of another trajectory raises RowError. With a
    `shuffle_generator` rewards are permuted among the measured samples of each group first: a control in which nothing
    can be learnt.
    """
    report = AdvantageReport(num_groups=len(groups))
    unmeasured: dict[str, str] = {}
    rewards: list[float] = []
    for group in groups:
        measured = _measured(group, unmeasured)
        rewards.extend(measured.values())
        report.num_trajectories += len(group.samples)
        if shuffle_generator is not None:
            shuffled = shuffle_generator.permutation(list(measured.values()))
            measured = dict(zip(measured, shuffled.tolist(), strict=True))
        reason = _no_signal(list(measured.values()))
        if reason is not None:
            report.group_reasons[group.id] = reason
            _count_equal(report, reason, list(measured.values()))
            measured = dict.fromkeys(measured, 0.0)
        else:
            measured = _advantages(measured, normalize_std)
        report.advantages.update(measured)
    report.num_unmeasured = len(unmeasured)
    report.num_dropped_groups = list(report.group_reasons.values()).count(TOO_FEW_MEASURED)
    _describe(report, rewards)
    _write(groups, rows, report, unmeasured)
    return report


def _measured(group: Group, unmeasured: dict[str, str]) -> dict[str, float]:
    """Reward by trajectory; the others' ids go to `unmeasured` with a reason."""
    rewards = {}
    for sample in group.samples:
        trajectory, reward = sample.trajectory, sample.reward
        if reward is not None and math.isfinite(reward):
            rewards[trajectory.id] = reward
        else:
            why = None if sample.grade is None else sample.grade.unmeasured
            unmeasured[trajectory.id] = f"{UNMEASURED}: {why}" if why else UNMEASURED
    return rewards


def _no_signal(rewards: Sequence[float]) -> str | None:
    """Why a group with these rewards teaches nothing, or None."""
    if len(rewards) < 2:
        return TOO_FEW_MEASURED
    # Rewards that are sums of parts differ in the last bit; divided by their deviation that would be all signal.
    spread = max(rewards) - min(rewards)
    return ZERO_VARIANCE if spread <= TOLERANCE * max(1.0, *(abs(reward) for reward in rewards)) else None


def _count_equal(report: AdvantageReport, reason: str, rewards: Sequence[float]) -> None:
    if reason == ZERO_VARIANCE:
        report.num_zero_variance_groups += 1
        report.num_all_zero_groups += math.isclose(rewards[0], 0.0, abs_tol=TOLERANCE)
        report.num_all_one_groups += math.isclose(rewards[0], 1.0, abs_tol=TOLERANCE)


def _advantages(rewards: dict[str, float], normalize_std: bool) -> dict[str, float]:
    values = np.array(list(rewards.values()))
    advantages = values - values.mean()
    if normalize_std:
        advantages /= values.std() + EPSILON
    return dict(zip(rewards, advantages.tolist(), strict=True))


def _describe(report: AdvantageReport, rewards: Sequence[float]) -> None:
    if rewards:
        values = np.array(rewards)
        report.reward_mean, report.reward_std = float(values.mean()), float(values.std())
        report.reward_min, report.reward_max = float(values.min()), float(values.max())


def _write(groups: Sequence[Group], rows: Sequence[Row], report: AdvantageReport, unmeasured: dict[str, str]) -> None:
    """Put advantages, and reasons for having none, into the Rows."""
    group_of = {sample.trajectory.id: group.id for group in groups for sample in group.samples}
    for row in rows:
        if row.trajectory not in group_of:
            raise RowError(f"trajectory {row.trajectory}, turn {row.end_turn}: it belongs to none of the groups given")
        row.advantage = report.advantages.get(row.trajectory, 0.0)
        reason = unmeasured.get(row.trajectory) or report.group_reasons.get(group_of[row.trajectory])
        if reason is not None:
            row.silence(reason)
