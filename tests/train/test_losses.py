"""Losses by hand: small numbers whose right value can be checked on paper."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl.train.losses import kl_k3, log_ratio, policy_gradient_loss, sft_loss
from agentrl.train.packed import chosen_logprobs


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_c01_temperature_divides_logits() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    logprobs, _ = chosen_logprobs(logits, torch.tensor([0]), torch.tensor([0.5]))
    assert logprobs.item() == pytest.approx(-0.1429, abs=5e-5)
    raw, _ = chosen_logprobs(logits, torch.tensor([0]), torch.tensor([1.0]))
    assert raw.item() / 0.5 == pytest.approx(-0.8152, abs=5e-5), "what dividing the logprob would give"


def test_entropy_of_a_fair_coin() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    _, entropy = chosen_logprobs(logits, torch.tensor([0]), torch.tensor([0.7]))
    assert entropy.item() == pytest.approx(math.log(2))


def test_half_types_are_raised_before_the_softmax() -> None:
    logits = torch.tensor([[1.0, 1.0078125]], dtype=torch.bfloat16)
    logprobs, entropy = chosen_logprobs(logits, torch.tensor([0]), torch.tensor([1.0]))
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert logprobs.item() == pytest.approx(-math.log(1 + math.exp(0.0078125)), abs=1e-7)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.5, 2.0, -2.56, 0.0, True),  # rising further is not rewarded past 1 + 0.28
        (0.5, 2.0, -1.0, -1.0, False),  # too rare: still pushed up
        (0.5, -2.0, 1.6, 0.0, True),  # falling further is not rewarded below 1 - 0.2
        (1.5, -2.0, 3.0, 3.0, False),  # too likely: still pushed down
    ],
)
def test_asymmetric_clip(ratio: float, advantage: float, loss: float, slope: float, clipped: bool) -> None:
    current = tensor(math.log(ratio) - 1.0).requires_grad_()
    result = policy_gradient_loss(
        current=current,
        behaviour=tensor(-1.0),
        advantages=tensor(advantage),
        weights=tensor(1.0),
        scale=tensor(1.0),
        clip_low=0.2,
        clip_high=0.28,
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss)
    assert current.grad is not None and current.grad.item() == pytest.approx(slope)
    assert result.ratio.item() == pytest.approx(ratio)
    assert result.clipped.item() is clipped


def test_weights_and_scale_are_the_whole_normalisation() -> None:
    result = policy_gradient_loss(
        current=tensor(-1.0, -1.0, -1.0),
        behaviour=tensor(-1.0, -1.0, -1.0),
        advantages=tensor(1.0, 2.0, 4.0),
        weights=tensor(1.0, 0.5, 0.0),
        scale=tensor(0.25, 0.5, 1.0),
        clip_low=0.2,
        clip_high=0.2,
    )
    assert result.loss.item() == -(0.25 + 0.5)
    assert sft_loss(current=tensor(-1.0, -3.0), weights=tensor(1.0, 1.0), scale=tensor(0.5, 0.5)).item() == 2.0


def test_k3_is_zero_at_equality_and_estimates_the_divergence() -> None:
    assert kl_k3(tensor(-1.0), tensor(-1.0)).item() == 0.0
    current, behaviour = tensor(0.5, 0.3, 0.2).log(), tensor(0.2, 0.3, 0.5).log()
    expected = (behaviour.exp() * (behaviour - current)).sum()
    assert (behaviour.exp() * kl_k3(current, behaviour)).sum().item() == pytest.approx(expected.item())


def test_a_wild_log_ratio_stays_finite_and_nan_stays_nan() -> None:
    assert log_ratio(tensor(0.0), tensor(-1000.0)).item() == 20.0
    assert math.isnan(log_ratio(tensor(math.nan), tensor(-1.0)).item())


def test_half_types_are_refused() -> None:
    with pytest.raises(TypeError, match="float32 or float64"):
        log_ratio(torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16))
