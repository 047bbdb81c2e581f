"""The optimizer of a policy: AdamW, or Muon for the matrices between embedding and head with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn import Parameter

from agentrl.config import TrainConfig
from agentrl.train.policy import Policy

OUTER_NAMES = ("embed", "lm_head")
"""Embeddings and heads are tables of vectors, not maps: Muon leaves them to AdamW."""


class Optimizer:
    """One or more torch optimizers that own different parameters and share a learning rate."""

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        named = policy.named_parameters()
        inner = {name: p for name, p in named.items() if config.optimizer == "muon" and is_inner_matrix(name, p)}
        outer = {name: p for name, p in named.items() if name not in inner}
        self.parts = [adamw(outer.items(), config)] if outer else []
        self.parts += [muon(name, p, config) for name, p in inner.items()]

    def step(self, learning_rate: float) -> None:
        """Apply the gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            if isinstance(part, torch.optim.Muon):
                step_muon(part)
            else:
                part.step()

    def zero_grad(self) -> None:
        """Free the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self, parameter: Parameter) -> dict[str, Any]:
        """The moments kept for a parameter, to read and to write; empty before the first update."""
        owner = next(part for part in self.parts if any(parameter is p for g in part.param_groups for p in g["params"]))
        state: dict[str, Any] = owner.state[parameter]
        return state


def is_inner_matrix(name: str, parameter: Parameter) -> bool:
    """Does Muon own it?"""
    return parameter.ndim == 2 and not any(word in name for word in OUTER_NAMES)


def adamw(named: Iterable[tuple[str, Parameter]], config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101). Weight decay is for matrices only: norms and biases have no reason to shrink."""
    parameters = [parameter for _, parameter in named]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, betas=(config.beta1, config.beta2)
    )


def muon(name: str, parameter: Parameter, config: TrainConfig) -> torch.optim.Optimizer:
    """Muon (https://kellerjordan.github.io/posts/muon/): momentum, made orthogonal. For one matrix.

    Its steps are scaled to AdamW's usual size (arXiv 2502.16982), so that one learning rate serves both.
    """
    return torch.optim.Muon(
        [(name, parameter)],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )


def step_muon(part: torch.optim.Optimizer) -> None:
    """Apply the gradient of one matrix. Gradient and momentum are gathered for it, and sharded again.

    Torch's Muon, given shards, multiplies them in bfloat16 and sums products over ranks, which rounds otherwise than on
    one rank (measured: 4e-4 of the weights in one step at a learning rate of 0.1). So each rank does all the work.
    """
    (parameter,) = part.param_groups[0]["params"]
    state = part.state[parameter]
    parameter.grad = _gathered(parameter.grad)
    if state:
        state["momentum_buffer"] = _gathered(state["momentum_buffer"])
    part.step()
    state["momentum_buffer"] = like(state["momentum_buffer"], parameter)
    parameter.grad = None


def _gathered(tensor: Tensor) -> Tensor:
    return tensor.redistribute(placements=[Replicate()]) if isinstance(tensor, DTensor) else tensor


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """A moment, sharded as its parameter; AdamW's step counter (a scalar) stays on the CPU.

    `value` is whole on every rank, so that nothing is sent.
    """
    if value.ndim == 0 or not isinstance(parameter, DTensor):
        return value
    if isinstance(value, DTensor):
        return value.redistribute(placements=parameter.placements)
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
