"""The start gate of the trainer: its logprobs are those of the model's own forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentrl.errors import ModelError
from agentrl.train.policy import Policy

MAX_IDS = 512
"""Of the Row that is compared: the plain way holds all its logits at once."""
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 0.1}
"""Nats. In bfloat16 two orders of summing a logit of 16 may differ by 1/16."""


def check_logprobs(policy: Policy, ids: Sequence[int]) -> float:
    """The largest difference (nats) between the trainer's logprobs of a Row, computed in chunks from hidden states, and
    log_softmax of `model.forward` on it.

    Raises ModelError, by the model's name, if they differ by more than rounding: the model then caps or scales its
    logits, or computes them in another way that the chunks don't, and would be trained on wrong probabilities.
    """
    row = list(ids[:MAX_IDS])
    if len(row) < 2:
        raise ModelError(f"a Row of {len(row)} ids has no logprob to compare; give the environment's tasks a prompt")
    chunked, plain = policy.logprobs(row, range(1, len(row))), policy.plain_logprobs(row)
    difference = max(abs(left - right) for left, right in zip(chunked, plain, strict=True))
    if not difference <= TOLERANCE[policy.dtype]:  # so that NaN fails too
        raise ModelError(
            f"{type(policy.packed.model).__name__}: logprobs computed in chunks differ from its own forward pass by "
            f"{difference:.3g} nats, more than {TOLERANCE[policy.dtype]:g}. It caps or scales its logits, which "
            "the trainer doesn't; use a model whose logits are head(hidden)"
        )
    return difference
