"""G1: the gradient is the one that plain autograd gives on padded sequences, however Rows are split and packed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from agentrl.batch.packing import Aggregation
from agentrl.train.policy import Policy

from .builders import (
    exact_norm,
    gpt2_config,
    make_groups,
    make_policy,
    make_rows,
    make_trainer,
    our_gradient,
    plain_gradient,
    plain_loss,
    plain_model,
    qwen2_config,
    relative_distance,
)

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
CONFIGS: dict[str, Any] = {
    "qwen2-tied": qwen2_config(),
    "qwen2-untied": qwen2_config(tie_word_embeddings=False),
    "gpt2": gpt2_config(),
}


@pytest.fixture(params=[(name, dtype) for name in CONFIGS for dtype in TOLERANCE], ids=str)
def policy(request: pytest.FixtureRequest) -> Iterator[Policy]:
    name, dtype = request.param
    with exact_norm(), make_policy(CONFIGS[name], dtype=dtype, logprob_chunk_tokens=16) as policy:
        yield policy


@pytest.mark.parametrize("aggregation", ["token", "trajectory"])
@pytest.mark.parametrize("branching", [False, True], ids=["append", "branches"])
def test_g1_gradient_is_plain_autograds_for_every_split(
    policy: Policy, aggregation: Aggregation, branching: bool
) -> None:
    groups = make_groups(3, branching=branching)
    rows = make_rows(groups)
    assert (len(rows) > 8) == branching, "branches split trajectories in several Rows"
    loss, expected = plain_gradient(policy, groups, aggregation)
    for micro_batch_tokens in (1, 40, 100, 10_000):
        trainer = make_trainer(policy, aggregation, micro_batch_tokens=micro_batch_tokens)
        ours, gradient = our_gradient(trainer, rows)
        tolerance = TOLERANCE[policy.dtype]
        assert relative_distance(gradient, expected) <= tolerance
        assert ours == pytest.approx(loss, rel=10 * tolerance, abs=10 * tolerance)


def test_a17_padding_side_changes_nothing() -> None:
    """The reference itself, with absolute positions: left and right padding agree, so it can be believed."""
    with make_policy(gpt2_config(), dtype=torch.float64) as policy:
        model, groups = plain_model(policy), make_groups(3)
        right = plain_loss(model, groups, "token", left=False).item()
        left = plain_loss(model, groups, "token", left=True).item()
        assert right == pytest.approx(left, abs=1e-12)


@pytest.mark.parametrize("config", [qwen2_config(), gpt2_config()], ids=["qwen2", "gpt2"])
def test_a17_packed_rows_score_as_alone(config: Any) -> None:
    rows = make_rows(make_groups(5, branching=True))
    with make_policy(config) as policy:
        make_trainer(policy, micro_batch_tokens=10_000).score(rows)
        for row in rows:
            places = row.mask.nonzero()[0]
            alone = policy.logprobs(row.ids.tolist(), places.tolist(), temperature=0.8)
            assert row.proximal[places].tolist() == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 10_000])
def test_d06_accumulation_changes_neither_gradient_nor_logged_loss(micro_batch_tokens: int) -> None:
    groups = make_groups(1)
    rows = make_rows(groups)
    with make_policy(gpt2_config(), dtype=torch.float64) as policy:
        expected_loss, expected = plain_gradient(policy, groups, "token")
        trainer = make_trainer(policy, micro_batch_tokens=micro_batch_tokens)
        _, gradient = our_gradient(trainer, rows)
        report = trainer.step(rows, 0)
    assert relative_distance(gradient, expected) <= 1e-10
    assert report.loss == pytest.approx(expected_loss, abs=1e-10)
    norm = sum(float(value.pow(2).sum()) for value in expected.values()) ** 0.5
    assert report.grad_norm == pytest.approx(norm, rel=1e-8)


def test_d07_dead_groups_change_nothing() -> None:
    live = make_groups(1, num_groups=1)
    every = make_groups(1, num_groups=4)
    for group in every[1:]:
        for sample in group.samples:
            assert sample.grade is not None
            sample.grade.reward = 1.0
    with make_policy(dtype=torch.float64) as policy:
        trainer = make_trainer(policy)
        loss, expected = our_gradient(trainer, make_rows(live))
        diluted, gradient = our_gradient(trainer, make_rows(every))
    assert diluted == pytest.approx(loss, abs=1e-12)
    assert relative_distance(gradient, expected) <= 1e-12
