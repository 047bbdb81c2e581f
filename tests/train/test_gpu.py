"""What needs CUDA devices: bfloat16 on one, NCCL ranks on two. Run with `pytest -m gpu` where there are some."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from agentrl.errors import TrainingError

from .builders import make_groups, make_policy, make_rows, make_trainer, our_gradient, relative_distance
from .test_ranks import gone, play, same_step

pytestmark = pytest.mark.gpu
needs_one = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
PAIR = ["cuda:0", "cuda:1"]


@needs_one
@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_has_the_gradient_of_float32_to_its_rounding(recompute: bool) -> None:
    rows = make_rows(make_groups(1, branching=True))
    with make_policy(device="cuda") as policy:
        _, expected = our_gradient(make_trainer(policy, micro_batch_tokens=10_000), rows)
    with make_policy(device="cuda", dtype=torch.bfloat16, activation_checkpointing=recompute) as policy:
        _, gradient = our_gradient(make_trainer(policy, micro_batch_tokens=10_000), rows)
        assert {parameter.dtype for parameter in policy.named_parameters().values()} == {torch.float32}
    assert relative_distance(gradient, expected) <= 0.05


@needs_two
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_nccl_ranks_make_the_step_of_one(optimizer: str) -> None:
    with make_policy(device="cuda", dtype=torch.float64) as policy:
        trainer = make_trainer(policy, micro_batch_tokens=40, optimizer=optimizer)
        expected = play(trainer, make_rows(make_groups(1)))
    with make_policy(device=PAIR, dtype=torch.float64) as policy:
        trainer = make_trainer(policy, micro_batch_tokens=40, optimizer=optimizer)
        same_step(play(trainer, make_rows(make_groups(1))), expected, 1e-6)


@needs_two
def test_an_nccl_rank_that_is_killed_in_a_step_ends_it() -> None:
    with make_policy(device=PAIR) as policy:
        (pid,) = policy.ranks.pids
        trainer = make_trainer(policy)
        trainer.score(make_rows(make_groups(1)))
        os.kill(pid, signal.SIGSTOP)
        killer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(TrainingError, match="rank 1 of 2 was killed by SIGKILL"):
            trainer.step(make_rows(make_groups(1)), 0)
        killer.join()
    assert gone([pid])
