"""A whole run on two ranks: it learns what one rank learns, and ends when a rank is killed between its steps."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl import plugins
from agentrl.environment import EnvironmentContext
from agentrl.errors import TrainingError
from agentrl.progress import Silent
from agentrl.run import train
from agentrl.store import RunStatus, Store
from agentrl.types import Artifacts, Grade, Task, Trajectory
from tests.small import EvenIds, small_config

from .test_run import Finished, run_small

ONE_STEP = ["train.steps=1", "train.micro_batch_tokens=128", "train.device=cpu", "eval.sampled=false"]
EXACT = {"num_tokens", "num_micro_batches", "num_trajectories", "num_updates", "mismatch_num_tokens"}
CLOSE = {"loss", "grad_norm", "ratio_mean", "ratio_max", "clip_share", "kl", "entropy", "logprob_mean"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)


def other_ranks() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "agentrl.train.rank_main" in child.cmdline()]


def step_rows(done: Finished) -> list[Any]:
    """What the store holds of the only step, by place, with the ids that were trained on."""
    (step,) = done.store.steps(done.summary.run)
    rows = sorted(done.store.rows_of(done.summary.run, step.id), key=lambda row: (row.batch, row.position))
    samples = [done.store.load_sample(row.trajectory) for row in rows]
    ids = [[turn.sampled_ids for turn in sample.trajectory.turns] for sample in samples]
    return list(zip(rows, ids, strict=True))


async def test_g1_a_run_on_two_ranks_takes_the_steps_of_a_run_on_one(tmp_path: Path, cache: Path) -> None:
    """The start gate, with checksums of all tensors, is passed on the way, and after the step again."""
    one = await run_small(tmp_path / "one", cache, *ONE_STEP)
    two = await run_small(tmp_path / "two", cache, *ONE_STEP, "train.ranks=2")
    assert not other_ranks()
    (left,), (right,) = one.steps, two.steps
    assert left["num_micro_batches"] >= 3, "there is something to share out"
    assert {name: right[name] for name in EXACT} == {name: left[name] for name in EXACT}
    for name in CLOSE:
        assert right[name] == pytest.approx(left[name], rel=1e-5, abs=1e-5), name
    assert right["mismatch_logprob_max"] <= 1e-4 and right["first_update_ratio_error"] <= 1e-6
    for (row, ids), (other, other_ids) in zip(step_rows(one), step_rows(two), strict=True):
        assert ids == other_ids, "the same rollouts"
        assert (row.batch, row.position, row.end_turn) == (other.batch, other.position, other.end_turn)
        assert other.advantage == pytest.approx(row.advantage, abs=1e-12)
        assert other.ratio_mean == pytest.approx(row.ratio_mean, rel=1e-5)
    hashes = [[version.weights_hash for version in done.store.versions(done.summary.run)] for done in (one, two)]
    assert hashes[0][0] == hashes[1][0] and len(hashes[1]) == 2


async def test_bfloat16_and_activation_checkpointing_pass_the_start_gate_and_learn(tmp_path: Path, cache: Path) -> None:
    done = await run_small(tmp_path, cache, *ONE_STEP, "train.dtype=bfloat16", "train.activation_checkpointing=true")
    (step,) = done.steps
    assert step["num_updates"] == 1 and step["first_update_ratio_error"] == 0.0
    assert 1e-5 < step["mismatch_logprob_max"] < 0.3, "the trainer rounds, the engine doesn't"


class KillsARank(Silent):
    """Kills the other rank as rollouts begin, when nothing is asked of it."""

    def phase(self, name: str, total: int) -> None:
        if name == "eval rollouts":
            (rank,) = other_ranks()
            os.kill(rank.pid, signal.SIGKILL)


class NeverGraded(EvenIds):
    """Its rollouts don't end while the test lasts."""

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.long  # in short: tests/train/test_ranks.py
async def test_a_rank_that_is_killed_while_rollouts_play_ends_the_run(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["train.device=cpu", "limits.grade_timeout_s=3600"]
    await run_small(tmp_path / "cached", cache, "train.steps=0", "eval.tasks=1", "eval.sampled=false", *options)
    monkeypatch.setattr(plugins, "environment", lambda name: NeverGraded)
    config = small_config(tmp_path, cache, "train.ranks=2", *options)
    async with asyncio.timeout(120):
        with pytest.raises(TrainingError, match=r"rank 1 of 2 was killed by SIGKILL during waiting"):
            await train(config, KillsARank())
    assert not other_ranks()
    assert Store.open(tmp_path / "agentrl.db").runs()[0].status is RunStatus.FAILED
