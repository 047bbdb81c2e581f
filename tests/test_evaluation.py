"""What an evaluation and a step say about rollouts that could not be measured, and about several samples per task."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from agentrl.cli.display import eval_text
from agentrl.estimate import share_interval
from agentrl.evaluation import EvalResult, outcome, summarize
from agentrl.progress import MetricsFile
from agentrl.types import Group, Sample, StopReason
from tests.batch.builders import make_group, make_sample


def sample(reward: float | None, reason: StopReason = StopReason.COMPLETED, **parts: float) -> Sample:
    made = make_sample([], reward=reward, stop_reason=reason)
    assert made.grade is not None
    return Sample(trajectory=made.trajectory, grade=made.grade.model_copy(update={"parts": parts}))


def ungraded(reason: StopReason) -> Sample:
    return Sample(trajectory=make_sample([], stop_reason=reason).trajectory, grade=None)


def evaluate(*groups: list[Sample], k: int = 1) -> EvalResult:
    made: list[Group] = [make_group(samples, id=str(n)) for n, samples in enumerate(groups)]
    return summarize(made, sampling="sampled", success_reward=1.0, k=k, version=3, seconds=1.0)


L02 = [sample(1.0, part=2.0), sample(1.0, part=4.0), ungraded(StopReason.SANDBOX_ERROR), sample(None, part=100.0)]
"""Rewards 1, 1, a fault of the set-up, a fault of the grading (whose parts mean nothing)."""


def test_l02_the_mean_over_scored_and_over_all_and_what_failed() -> None:
    result = evaluate(*[[each] for each in L02])
    assert (result.success, result.num_samples - result.num_unmeasured) == (1.0, 2)
    assert (result.success_of_all, result.num_samples) == (0.5, 4)
    assert (result.reward, result.reward_of_all) == (1.0, 0.5)
    assert result.failures == {"grading": {"num": 1, "share": 0.25}, "sandbox_error": {"num": 1, "share": 0.25}}
    assert result.parts == {"part": {"mean": 3.0, "num": 2}}  # the same two samples as the mean reward
    assert result.endings == {"completed": 3, "sandbox_error": 1}
    text = eval_text(result.figures())
    assert "1.000" in text and "over the 2 scored samples, of all 4 it is 0.500" in text
    assert "2 unmeasured (grading 1, sandbox_error 1)" in text


def test_l02_a_step_says_the_same_of_its_rollouts() -> None:
    figures = outcome(L02)
    assert (figures["reward_of_scored"], figures["num_scored"], figures["reward_of_all"]) == (1.0, 2, 0.5)
    assert figures["failures"]["sandbox_error"] == {"num": 1, "share": 0.25}
    assert figures["parts"] == {"part": {"mean": 3.0, "num": 2}}


def test_several_samples_per_task() -> None:
    solved, failed = sample(1.0), sample(0.0)
    tasks = [[solved, failed, failed, failed], [solved, solved, failed, failed], [failed] * 4]
    result = evaluate(*tasks, k=2)
    assert result.success == pytest.approx(3 / 12) and result.samples_per_task == 4
    # One minus the pairs without a solved one: 3 of 6, 1 of 6, all.
    assert result.pass_at_k == pytest.approx((3 / 6 + 5 / 6 + 0) / 3) and result.num_pass_tasks == 3
    assert result.success_interval == share_interval([[1.0, 0, 0, 0], [1.0, 1.0, 0, 0], [0.0] * 4])
    text = eval_text(result.figures())
    assert "avg@4: 0.250" in text and "3 tasks × 4 samples" in text and "pass@2 0.444" in text


def test_a_task_with_too_few_scored_samples_is_in_no_pass_at_k_and_that_is_said() -> None:
    lost = ungraded(StopReason.ENGINE_ERROR)
    result = evaluate([sample(1.0), sample(0.0)], [sample(1.0), lost], k=2)
    assert (result.pass_at_k, result.num_pass_tasks, result.num_tasks) == (1.0, 1, 2)
    assert "of 1 tasks" in eval_text(result.figures())


def test_l03_where_nothing_was_scored_the_figures_are_absent(tmp_path: Path) -> None:
    result = evaluate([ungraded(StopReason.ENV_ERROR)])
    figures = result.figures()
    assert not {"success", "reward", "success_interval", "pass_at_k"} & set(figures)
    assert figures["success_of_all"] == 0.0 and figures["failures"]["env_error"]["share"] == 1.0
    assert "sampled: -" in eval_text(figures)
    assert "reward_of_scored" not in outcome([ungraded(StopReason.ENV_ERROR)])
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write("step", {"kl": math.nan, "loss": 0.5, "grad_norm": math.inf, "inner": {"a": math.nan, "b": 1.0}})
    record = json.loads(file.path.read_text())
    assert "kl" not in record and record["loss"] == 0.5 and record["inner"] == {"b": 1.0}
    assert record["grad_norm"] is None  # infinity is a fault, not a lack of values


def test_l03_a_part_that_some_grades_lack_is_counted_over_those_that_have_it() -> None:
    figures = outcome([sample(1.0, a=0.5), sample(0.0, a=math.nan), sample(0.0, a=0.8, b=1.0)])
    assert figures["parts"]["a"] == pytest.approx({"mean": 0.65, "num": 2})
    assert figures["parts"]["b"] == {"mean": 1.0, "num": 1}


def test_a_resumed_run_reads_its_first_measure_back() -> None:
    result = evaluate([sample(1.0), sample(None)], [sample(0.0), sample(0.0)])
    again = EvalResult(**json.loads(json.dumps(asdict(result))))
    assert again.figures() == json.loads(json.dumps(result.figures()))
