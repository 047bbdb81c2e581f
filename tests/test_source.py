"""`agentrl train source=replay`: training on what other runs stored, without an engine."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.config import RunConfig
from agentrl.progress import Silent
from agentrl.run import train
from agentrl.store import StepRecord, Store
from agentrl.testing.audit import audit
from tests.small import EvenIds, small_config

TRAINED_SO = [
    "train.threads=1", "train.learning_rate=1e-3", "train.updates_per_step=2", "train.micro_batch_tokens=200",
    "train.keep_best=false", "sft.optimizer=adamw",
]  # fmt: skip
"""What both the live run and its replays have."""
LEARNT = ("loss", "grad_norm", "num_tokens", "ratio_max", "mismatch_logprob_max", "reward_mean", "learning_rate")


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)


@dataclass
class Lived:
    """A live run of three steps, in a folder with a cache of its own."""

    folder: Path
    cache: Path

    def config(self, *overrides: str) -> RunConfig:
        given = [*TRAINED_SO, "train.steps=3", *overrides]
        return small_config(self.folder, self.cache, *given)

    def replay(self, *overrides: str) -> RunConfig:
        return self.config("source=replay", "source.runs=lived", *overrides)


@pytest.fixture(scope="session")
def _lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    its = Lived(tmp_path_factory.mktemp("lived"), tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "environment", lambda name: EvenIds)
        live = its.config("engine=scripted", "engine.threads=1", "eval.tasks=1", "eval.sampled=false", "name=lived")
        asyncio.run(train(live, Silent()))
    return its


@pytest.fixture
def lived(_lived: Lived, tmp_path: Path) -> Lived:
    """Another copy of the database, to write to."""
    shutil.copy(_lived.folder / "agentrl.db", tmp_path / "agentrl.db")
    return Lived(tmp_path, _lived.cache)


def line(lived: Lived, run: str) -> list[tuple[StepRecord, str]]:
    """The steps of the surviving line, each with the hash of the weights that it made."""
    with Store.open(lived.folder / "agentrl.db") as store:
        id = store.find_run(run).id
        hashes = {version.id: version.weights_hash for version in store.versions(id)}
        steps = [step for step in store.steps(id) if not step.abandoned]
        return [(step, hashes[-1 if step.version_after is None else step.version_after]) for step in steps]


async def test_a_replay_of_an_on_policy_run_is_that_run_bit_for_bit(lived: Lived) -> None:
    """S3 Equal weights, config and groups: losses, gradient norms and weights are those of the live run."""
    summary = await train(lived.replay("name=again"), Silent())
    was, now = line(lived, "lived"), line(lived, "again")
    assert len(was) == len(now) == summary.steps == 3
    for (live, weights), (replayed, same) in zip(was, now, strict=True):
        assert live.metrics is not None and replayed.metrics is not None and live.metrics["num_updates"] == 2
        assert {name: replayed.metrics[name] for name in LEARNT} == {name: live.metrics[name] for name in LEARNT}
        assert same == weights
    with Store.open(lived.folder / "agentrl.db") as store:
        assert list(audit(store.location)) == []
