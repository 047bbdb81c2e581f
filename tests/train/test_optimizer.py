"""Which optimizer owns which parameter."""

from __future__ import annotations

import pytest
import torch

from .builders import make_groups, make_policy, make_rows, make_trainer


def test_muon_owns_the_inner_matrices_and_adamw_the_rest() -> None:
    with make_policy() as policy:
        trainer = make_trainer(policy, optimizer="muon")
        trainer.step(make_rows(make_groups(1)), 0)
        named = policy.named_parameters()
        owned = {name for name, parameter in named.items() if "momentum_buffer" in trainer.optimizer.state(parameter)}
        rest = {name for name, parameter in named.items() if "exp_avg" in trainer.optimizer.state(parameter)}
    assert owned | rest == set(named) and not owned & rest
    assert owned == {name for name in named if "proj.weight" in name}


def test_a_step_of_muon_is_orthogonal_and_has_the_size_of_adamws() -> None:
    """The first step: every singular value alike, and an RMS of 0.2 × the learning rate."""
    with make_policy() as policy:
        trainer = make_trainer(policy, optimizer="muon", learning_rate=1e-2, warmup_steps=0, weight_decay=0.0)
        name = "model.layers.0.mlp.up_proj.weight"
        before = policy.named_parameters()[name].full_tensor().detach().clone()  # type: ignore[attr-defined]
        trainer.step(make_rows(make_groups(1)), 0)
        step = policy.named_parameters()[name].full_tensor().detach() - before  # type: ignore[attr-defined]
    sizes = torch.linalg.svdvals(step)
    assert sizes.max() < 3 * sizes.min()
    assert float(step.pow(2).mean().sqrt()) == pytest.approx(0.2 * 1e-2, rel=0.3)
