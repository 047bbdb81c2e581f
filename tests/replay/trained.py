"""A small run of which everything is computed again."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.progress import Silent
from agentrl.run import resume, train
from agentrl.store import RunRecord, Store
from agentrl.types import Trajectory
from tests.small import EvenIds, small_config


@dataclass
class Trained:
    """A run whose last step was computed twice: its first computation is abandoned."""

    folder: Path
    run: RunRecord

    @property
    def database(self) -> str:
        return str(self.folder / "agentrl.db")

    def copy(self, place: Path) -> Trained:
        """Another copy of the database, for changes."""
        shutil.copy(self.database, place / "agentrl.db")
        return Trained(place, self.run)

    def trajectories(self, step: int) -> list[Trajectory]:
        with Store.open(self.database) as store:
            return [store.load_trajectory(id) for id in store.trajectories_of(self.run.id, step)]


def train_twice(folder: Path) -> Trained:
    """Steps 0 to 3, of which 3 takes the place of the abandoned 2; kept are the base, step-2 and step-3."""
    config = small_config(
        folder, folder / "cache", "engine=scripted", "train.steps=3", "train.checkpoint_every=2", "eval.tasks=1",
        "engine.threads=1", "train.threads=1", "train.learning_rate=1e-3", "train.updates_per_step=2",
        "train.micro_batch_tokens=200", "train.keep_best=false", "limits.max_turn_tokens=30",
        "sampling.temperature=1.3", "name=demo",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "environment", lambda name: EvenIds)
        done = asyncio.run(train(config, Silent()))
        shutil.rmtree(Path(done.paths["checkpoint"]))
        asyncio.run(resume(config, Silent(), done.run))
    with Store.open(folder / "agentrl.db") as store:
        run = store.find_run(done.run)
        assert [step.abandoned for step in store.steps(run.id)] == [False, False, True, False]
    return Trained(folder, run)
