"""What a set of rollouts was worth: means over what was measured, beside means over all, and what failed (R2).

A rollout that could not be measured is left out of the mean and counted by what failed. Leaving out alone makes the
mean too high where hard tasks fail more often, so the mean over all rollouts, failures as 0, stands beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from agentrl.estimate import Interval, clustered_interval, mean_of, pass_at_k, share_interval
from agentrl.types import Group, Sample

GRADING = "grading"
"""The failure of a rollout that ended well and could not be graded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """A held-out measure. A figure that nothing was measured for is None."""

    sampling: str
    """greedy or sampled."""
    version: int
    seconds: float
    num_tasks: int
    samples_per_task: int
    num_samples: int
    num_unmeasured: int
    failures: dict[str, dict[str, float]]
    """Class of failure (a StopReason, or "grading") → num and share of all samples."""
    success: float | None
    """Share of the measured samples that solved their task: with n samples per task this is avg@n."""
    success_interval: Interval | None
    success_of_all: float | None
    """The same over all samples: what failed solved nothing."""
    k: int
    pass_at_k: float | None
    """Mean over the tasks with at least k measured samples."""
    pass_at_k_interval: Interval | None
    num_pass_tasks: int
    reward: float | None
    reward_interval: Interval | None
    reward_of_all: float | None
    parts: dict[str, dict[str, float]]
    """Part of the grade → mean and num, over measured samples."""
    endings: dict[str, int]

    def figures(self) -> dict[str, Any]:
        """By name; what nothing was measured for is absent (L03)."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def summarize(
    groups: Sequence[Group], *, sampling: str, success_reward: float, k: int, version: int, seconds: float
) -> EvalResult:
    """The result of an evaluation with one or more samples per task."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = [[s.reward for s in group.samples if s.reward is not None] for group in groups]
    solved = [[float(reward >= success_reward) for reward in task] for task in rewards]
    passes = [pass_at_k(len(task), int(sum(task)), k) for task in solved if len(task) >= k]
    successes, all_rewards = list(chain.from_iterable(solved)), list(chain.from_iterable(rewards))
    return EvalResult(
        sampling=sampling,
        version=version,
        seconds=seconds,
        num_tasks=len(groups),
        samples_per_task=max((group.size for group in groups), default=0),
        num_samples=len(samples),
        num_unmeasured=len(samples) - len(all_rewards),
        failures=failures(samples),
        success=_mean(successes),
        success_interval=share_interval(solved),
        success_of_all=sum(successes) / len(samples) if samples else None,
        k=k,
        pass_at_k=_mean(passes),
        pass_at_k_interval=share_interval([[value] for value in passes]),
        num_pass_tasks=len(passes),
        reward=_mean(all_rewards),
        reward_interval=clustered_interval(rewards),
        reward_of_all=sum(all_rewards) / len(samples) if samples else None,
        parts=parts(samples),
        endings=endings(samples),
    )


def outcome(samples: Sequence[Sample]) -> dict[str, Any]:
    """What became of a step's samples, for its metrics; a mean of nothing is absent."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    means = {"reward_of_scored": _mean(rewards), "reward_of_all": sum(rewards) / len(samples) if samples else None}
    return {
        **{name: value for name, value in means.items() if value is not None},
        "num_scored": len(rewards),
        "failures": failures(samples),
        "parts": parts(samples),
        "endings": endings(samples),
    }


def failures(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Class of failure → how many of the samples it left unmeasured, and their share of all."""
    counts = Counter(_failure(sample) for sample in samples if sample.reward is None)
    return {name: {"num": count, "share": count / len(samples)} for name, count in sorted(counts.items())}


def parts(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Mean and count of each named part of the grades, over the samples that the mean reward is over."""
    grades = [sample.grade for sample in samples if sample.grade and sample.reward is not None]
    names = sorted({name for grade in grades for name in grade.parts})
    means = {name: mean_of(grade.parts.get(name) for grade in grades) for name in names}
    return {name: mean._asdict() for name, mean in means.items() if mean is not None}


def endings(samples: Sequence[Sample]) -> dict[str, int]:
    """How many trajectories ended in each StopReason."""
    return dict(Counter(str(sample.trajectory.stop_reason) for sample in samples))


def _failure(sample: Sample) -> str:
    reason = sample.trajectory.stop_reason
    if reason is None:
        return "unfinished"
    return GRADING if reason.ending.graded else reason.value


def _mean(values: Sequence[float]) -> float | None:
    mean = mean_of(values)
    return None if mean is None else mean.mean
