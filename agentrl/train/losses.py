"""Losses and their diagnostics: pure functions of named inputs, each [S], one value per selected id.

`weights * scale` is the whole normalisation (see `agentrl.batch.packing`): sums over micro-batches are the loss of the
Batch. Whatever is computed here sees selected ids only, so that no number includes tokens of tools (L04).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ±20 before exp: e^20 is far outside any trust region, and float32 overflows at e^88.
A token beyond it gets no gradient; NaN passes through, so that the update is refused (G3)."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of a micro-batch, and what to measure of each id. All but `loss` are detached, [S]."""

    loss: Tensor
    """Scalar."""
    ratio: Tensor
    """Probability now / when sampled."""
    clipped: Tensor
    """Bool: the clipped branch is the active one, so the id has no gradient."""
    kl: Tensor
    """k3 estimate, >= 0, of KL(behaviour || current) in nats."""


def policy_gradient_loss(
    *,
    current: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    weights: Tensor,
    scale: Tensor,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """Clipped policy gradient: sum of scale * weight * max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)).

    r = exp(current - behaviour), in the inputs' type, which must be float32 or higher. The pessimistic clip is PPO's
    (arXiv 1707.06347, eq. 7), per token as in GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3, here without its KL term);
    two bounds (clip higher) and the division by tokens are DAPO's (arXiv 2503.14476, eq. 8-11).
    """
    ratio = torch.exp(log_ratio(current, behaviour))
    clipped_ratio = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high)
    token_loss = torch.maximum(-advantages * ratio, -advantages * clipped_ratio)
    too_high = (advantages > 0) & (ratio > 1.0 + clip_high)
    too_low = (advantages < 0) & (ratio < 1.0 - clip_low)
    return PolicyLoss(
        loss=weighted_sum(token_loss, weights, scale),
        ratio=ratio.detach(),
        clipped=too_high | too_low,
        kl=kl_k3(current.detach(), behaviour),
    )


def sft_loss(*, current: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropy with the recorded ids: sum of scale * weight * -logprob. A scalar."""
    return weighted_sum(-current, weights, scale)


def kl_k3(current: Tensor, behaviour: Tensor) -> Tensor:
    """[S] (r - 1) - log r: unbiased, never negative (J. Schulman, "Approximating KL divergence", 2020, estimator k3).

    Over ids sampled by `behaviour` its mean estimates KL(behaviour || current), in nats.
    """
    log = log_ratio(current, behaviour)
    return torch.expm1(log) - log


def log_ratio(current: Tensor, behaviour: Tensor) -> Tensor:
    """[S] current - behaviour, clamped to ±MAX_LOG_RATIO."""
    if current.dtype not in (torch.float32, torch.float64) or current.dtype != behaviour.dtype:
        raise TypeError(f"log-ratios need float32 or float64 on both sides, not {current.dtype} and {behaviour.dtype}")
    return torch.clamp(current - behaviour, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def weighted_sum(values: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """Scalar: sum of scale * weight * value."""
    return (scale * weights * values).sum()
