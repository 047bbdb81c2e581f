"""The trainer: what a step reports, and that nothing is learnt from NaN or from nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from agentrl.batch.rows import build_rows
from agentrl.config import TrainConfig
from agentrl.errors import TrainingError
from agentrl.train.policy import Policy
from agentrl.train.trainer import Trainer, scheduled_learning_rate

from .builders import make_groups, make_policy, make_rows, make_trainer, qwen2_config, weights


@pytest.fixture
def policy() -> Iterator[Policy]:
    with make_policy() as policy:
        yield policy


def optimizer_states(trainer: Trainer) -> list[dict[str, torch.Tensor]]:
    return [trainer.optimizer.state(parameter) for parameter in trainer.policy.named_parameters().values()]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_c07_the_first_update_starts_at_ratio_1(dtype: torch.dtype) -> None:
    """Scored and trained with one packing: exactly 1, also in bfloat16 and with several updates per step."""
    rows = make_rows(make_groups(1, branching=True))
    with make_policy(dtype=dtype) as policy:
        trainer = make_trainer(policy, micro_batch_tokens=40, updates_per_step=2)
        trainer.score(rows)
        report = trainer.step(rows, 0)
    assert report.num_updates == 2
    assert report.metrics["first_update_ratio_error"] == 0.0


def test_c07_would_show_another_packing() -> None:
    rows = make_rows(make_groups(1))
    with make_policy(dtype=torch.bfloat16) as policy:
        make_trainer(policy, micro_batch_tokens=10_000).score(rows)
        report = make_trainer(policy, micro_batch_tokens=1).step(rows, 0)
    assert 0.0 < report.metrics["first_update_ratio_error"] < 0.05


def test_g2_mismatch_is_measured(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy)
    trainer.score(rows)
    for row in rows:
        row.logprobs[:] = np.where(row.mask == 1, row.proximal, np.nan)
    exact = trainer.score(rows)
    assert exact["mismatch_logprob_max"] == exact["mismatch_kl"] == exact["mismatch_ratio_error"] == 0.0
    place = int(np.flatnonzero(rows[0].mask)[0])
    rows[0].logprobs[place] -= 0.5
    shifted = trainer.score(rows)
    num_tokens = sum(int(row.mask.sum()) for row in rows)
    assert shifted["mismatch_num_tokens"] == num_tokens
    assert shifted["mismatch_logprob_max"] == pytest.approx(0.5)
    assert shifted["mismatch_logprob_mean"] == pytest.approx(0.5 / num_tokens)
    assert shifted["mismatch_ratio_error"] == pytest.approx((math.exp(0.5) - 1) / num_tokens)
    assert shifted["mismatch_kl"] == pytest.approx((math.exp(0.5) - 1.5) / num_tokens)


def test_on_policy_the_ratio_is_1(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy)
    trainer.score(rows)
    for row in rows:
        row.logprobs[:] = np.where(row.mask == 1, row.proximal, np.nan)
    report = trainer.step(rows, 0)
    assert report.metrics["ratio_mean"] == report.metrics["ratio_max"] == 1.0
    assert report.metrics["clip_share"] == report.metrics["kl"] == 0.0


def test_l04_metrics_cover_sampled_ids_only(policy: Policy) -> None:
    """Every mean is over the ids of weight; a Row with many tool ids adds none of them."""
    rows = make_rows(make_groups(1))
    rows[0].silence("because", rows[0].turn_index == 0)
    trainer = make_trainer(policy)
    trainer.score(rows)
    report = trainer.step(rows, 0)
    chosen = [(row, np.flatnonzero(row.weights)) for row in rows]
    logprobs = np.concatenate([row.proximal[places] for row, places in chosen])
    ratio = np.exp(logprobs - np.concatenate([row.logprobs[places] for row, places in chosen]))
    assert report.metrics["num_tokens"] == len(logprobs) < sum(len(row) for row in rows)
    assert report.metrics["logprob_mean"] == pytest.approx(logprobs.mean(), abs=1e-6)
    assert report.metrics["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-5)
    assert report.metrics["ratio_max"] == pytest.approx(ratio.max(), rel=1e-5)
    assert report.metrics["kl"] == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-4)
    assert np.isnan(rows[0].proximal[rows[0].weights == 0]).all()


def test_s2_every_row_is_reported(policy: Policy) -> None:
    rows = make_rows(make_groups(1, branching=True))
    rows[1].silence("because")
    trainer = make_trainer(policy, updates_per_step=2)
    trainer.score(rows)
    first_of_step = {id(row): np.exp(row.proximal - row.logprobs)[row.weights != 0] for row in rows}
    report = trainer.step(rows, 0)
    assert [(r.trajectory, r.end_turn) for r in report.rows] == [(row.trajectory, row.end_turn) for row in rows]
    assert report.rows[1].batch is None and math.isnan(report.rows[1].ratio_mean)
    for number, batch in enumerate(report.batches):
        positions = [r.position for r in report.rows if r.batch == number]
        assert sorted(positions) == list(range(batch.num_rows))
    for row, described in zip(rows, report.rows, strict=True):
        if described.batch == 0:
            ratio = first_of_step[id(row)]
            assert described.num_tokens == len(ratio)
            assert described.ratio_mean == pytest.approx(ratio.mean(), rel=1e-5)
            assert described.ratio_max == pytest.approx(ratio.max(), rel=1e-5)
            clipped = ratio > 1.28 if row.advantage > 0 else ratio < 0.8
            assert described.clip_share == pytest.approx(clipped.mean())


def test_steps_raise_what_was_rewarded(policy: Policy) -> None:
    """The sign is right: ids of good samples become likelier, those of bad ones rarer."""
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy)
    trainer.score(rows)
    for row in rows:
        row.logprobs[:] = np.where(row.mask == 1, row.proximal, np.nan)
    for ordinal in range(5):
        trainer.step(rows, ordinal)
    trainer.score(rows)
    gain = [(row.advantage, float(np.nanmean(row.proximal - row.logprobs))) for row in rows]
    assert np.corrcoef(np.array(gain).T)[0, 1] > 0.5


def test_g3_a_bad_update_is_skipped_and_the_next_goes_on() -> None:
    """Equal to a step that never saw the bad Batch: weights and optimizer state are as they were."""
    rows = make_rows(make_groups(1))
    with make_policy() as policy, make_policy() as clean:
        trainer, reference = make_trainer(policy, updates_per_step=2), make_trainer(clean)
        half = [row for row in rows if row.group == "b"]
        trainer.step(half[:1], 0)
        reference.step(half[:1], 0)
        bad = next(row for row in rows if row.group == "a")
        bad.advantages[bad.mask == 1] = math.nan
        report = trainer.step(rows, 1)
        reference.step(half, 1)
        assert report.skipped == {0: "loss is nan"}
        assert report.num_updates == 1
        assert report.metrics["num_skipped_updates"] == 1
        assert math.isfinite(report.loss) and math.isfinite(report.grad_norm)
        assert trainer.num_bad_updates == 0
        assert same(weights(policy), weights(clean))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_c09_a_gradient_that_is_not_finite_changes_nothing(policy: Policy, value: float) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy, max_bad_updates=2)
    trainer.step(rows, 0)
    before = weights(policy)
    moments = [state["exp_avg"].full_tensor().clone() for state in optimizer_states(trainer)]
    hook = policy.model.model.norm.register_full_backward_hook(lambda _module, inputs, _outputs: (inputs[0] * value,))
    report = trainer.step(rows, 1)
    hook.remove()
    # Infinity becomes NaN on its way through the layers.
    assert report.skipped == {0: "gradient norm is nan"}
    assert report.num_updates == 0 and math.isnan(report.loss)
    assert same(weights(policy), before)
    after = [state["exp_avg"].full_tensor() for state in optimizer_states(trainer)]
    assert all(torch.equal(left, right) for left, right in zip(moments, after, strict=True))


def test_c09_too_many_bad_updates_in_a_row_end_the_run_with_the_last_finite_weights(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    for row in rows:
        row.advantages[:] = math.nan
    before = weights(policy)
    trainer = make_trainer(policy, max_bad_updates=3)
    assert trainer.step(rows, 0).skipped and trainer.step(rows, 1).skipped
    with pytest.raises(TrainingError, match=r"3 updates in a row.*step 2, batch 0: loss is nan"):
        trainer.step(rows, 2)
    assert same(weights(policy), before)


def test_a_step_without_signal_makes_no_update(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy, weight_decay=0.1)
    trainer.step(rows, 0)
    for row in rows:
        row.silence("zero_variance")
    before = weights(policy)
    mismatch = trainer.score(rows)
    report = trainer.step(rows, 1)
    assert report.no_signal and report.num_updates == 0 and math.isnan(report.loss)
    assert all(described.batch is None for described in report.rows)
    assert same(weights(policy), before)
    # The mismatch is still measured, over all that an engine sampled.
    assert mismatch["mismatch_num_tokens"] == sum(int(row.mask.sum()) for row in rows)
    assert mismatch["mismatch_logprob_mean"] > 0


def test_scoring_after_an_update_sees_the_new_weights(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy)
    trainer.score(rows)
    old = rows[0].proximal.copy()
    trainer.step(rows, 0)
    trainer.score(rows)
    with make_policy(qwen2_config()) as fresh:
        make_trainer(fresh).step(rows, 0)
        places = np.flatnonzero(rows[0].mask)
        expected = fresh.logprobs(rows[0].ids.tolist(), places.tolist(), temperature=0.8)
    assert rows[0].proximal[places].tolist() == pytest.approx(expected, abs=1e-5)
    assert np.abs(rows[0].proximal - old)[places].max() > 1e-3


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_sft_imitates(policy: Policy, optimizer: str) -> None:
    rows = [row for group in make_groups(1) for s in group.samples for row in build_rows(s, for_sft=True)]
    trainer = make_trainer(policy, optimizer=optimizer)
    losses = [trainer.sft_step(rows, ordinal).loss for ordinal in range(8)]
    assert losses[-1] < 0.7 * losses[0]
    for row in rows:
        row.silence("because")
    with pytest.raises(TrainingError, match="no demonstration"):
        trainer.sft_step(rows, 8)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]),
    ],
)
def test_schedules_go_by_the_ordinal(schedule: str, expected: list[float]) -> None:
    config = TrainConfig(learning_rate=1.0, warmup_steps=2, steps=6, schedule=schedule)
    assert [scheduled_learning_rate(config, ordinal) for ordinal in range(6)] == pytest.approx(expected)


def test_the_schedule_reaches_the_optimizer(policy: Policy) -> None:
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy, warmup_steps=1)
    assert trainer.step(rows, 0).learning_rate == pytest.approx(5e-3)
    assert {group["lr"] for part in trainer.optimizer.parts for group in part.param_groups} == {5e-3}


def test_gradients_are_clipped(policy: Policy) -> None:
    """One update of plain descent moves by at most learning rate * max_grad_norm."""
    rows = make_rows(make_groups(1))
    trainer = make_trainer(policy, max_grad_norm=1e-3)
    trainer.optimizer.parts = [torch.optim.SGD(policy.named_parameters().values(), lr=1e-2)]
    before = weights(policy)
    report = trainer.step(rows, 0)
    moved = math.sqrt(sum(float((value - before[name]).pow(2).sum()) for name, value in weights(policy).items()))
    assert report.grad_norm > 1e-2
    assert moved == pytest.approx(1e-2 * 1e-3, rel=0.05)
