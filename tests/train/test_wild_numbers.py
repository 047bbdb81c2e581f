"""Numbers that are not finite or out of all proportion never reach the weights, and never look like a normal step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
import torch

from agentrl.batch.rows import Row
from agentrl.errors import TrainingError
from agentrl.train.policy import Policy
from agentrl.train.report import StepReport
from agentrl.train.trainer import Trainer

from .builders import make_groups, make_policy, make_rows, make_trainer, weights


@pytest.fixture
def policy() -> Iterator[Policy]:
    with make_policy() as policy:
        yield policy


def is_finite(policy: Policy) -> bool:
    return all(torch.isfinite(tensor).all() for tensor in weights(policy).values())


def scored_step(trainer: Trainer, rows: list[Row]) -> StepReport:
    trainer.score(rows)
    return trainer.step(rows, 0)


def test_c06_an_id_that_is_dropped_is_not_multiplied_by_zero(policy: Policy) -> None:
    """Sampled at -240 nats by the engine: with weight 0 the step equals one that never saw the id's ratio."""
    rows, clean = make_rows(make_groups(1)), make_rows(make_groups(1))
    place = int(np.flatnonzero(rows[0].mask)[0])
    rows[0].logprobs[place] = -240.0
    for some in (rows, clean):
        some[0].silence("too far", np.arange(len(some[0])) == place)
    with make_policy() as other:
        report, expected = [scored_step(make_trainer(it), some) for it, some in ((policy, rows), (other, clean))]
        assert report.metrics == expected.metrics and math.isfinite(report.loss)
        assert all(torch.equal(left, weights(other)[name]) for name, left in weights(policy).items())


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_c06_a_ratio_that_would_overflow_leaves_a_finite_update(policy: Policy, advantage: float) -> None:
    rows = make_rows(make_groups(1))
    places = np.flatnonzero(rows[0].mask)
    rows[0].advantage = advantage
    rows[0].logprobs[places[0]] = -240.0
    report = make_trainer(policy).step(rows, 0)
    assert report.num_updates == 1 and math.isfinite(report.loss) and math.isfinite(report.grad_norm)
    assert report.metrics["ratio_max"] == pytest.approx(math.exp(20.0))
    assert is_finite(policy)


def test_c09_a_gradient_of_nan_at_step_3_is_skipped_counted_and_then_ends_the_run(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy, max_bad_updates=3)
    for ordinal in range(2):
        assert trainer.step(rows, ordinal).num_updates == 1
    good = weights(policy)
    hook = policy.model.model.norm.register_full_backward_hook(
        lambda _module, inputs, _outputs: (inputs[0] * math.nan,)
    )
    for ordinal in range(2, 4):
        report = trainer.step(rows, ordinal)
        assert report.num_updates == 0 and report.metrics["num_skipped_updates"] == 1
    with pytest.raises(TrainingError, match=r"3 updates in a row.*step 4, batch 0: gradient norm is nan"):
        trainer.step(rows, 4)
    hook.remove()
    assert all(torch.equal(tensor, good[name]) for name, tensor in weights(policy).items())
    assert is_finite(policy) and trainer.step(rows, 5).num_updates == 1


def test_d04_a_step_that_was_skipped_reports_no_loss_and_no_norm_as_if_it_were_normal(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    for row in rows:
        row.advantages[:] = math.nan
    report = make_trainer(policy).step(rows, 0)
    assert report.skipped == {0: "loss is nan"}
    assert math.isnan(report.metrics["loss"]) and math.isnan(report.metrics["grad_norm"])
    assert (report.metrics["num_updates"], report.metrics["num_skipped_updates"]) == (0, 1)


def test_a15_a_row_that_is_left_out_counts_in_no_number_of_the_step(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    for row in rows[1:]:
        row.silence("truncated")
    report = make_trainer(policy).step(rows, 0)
    assert report.metrics["num_tokens"] == int(rows[0].weights.sum())
    assert report.metrics["num_trajectories"] == 1
    assert {described.num_tokens for described in report.rows[1:]} == {0}
    assert all(math.isnan(asdict(described)["ratio_mean"]) for described in report.rows[1:])
