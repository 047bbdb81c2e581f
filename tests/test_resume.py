"""A run that was stopped and resumed equals the one that wasn't, bit for bit, wherever it was stopped (S1)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl import plugins
from agentrl.config import RunConfig
from agentrl.errors import BadUpdates, ConfigError, ModelError
from agentrl.interrupts import locked
from agentrl.progress import Silent
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.renderer import Renderer
from agentrl.run import resume, train
from agentrl.store import RunStatus, Store
from agentrl.train import checkpoint
from agentrl.train.trainer import Trainer
from agentrl.types import GroupState, Purpose, Sample, Trajectory
from tests.small import EvenIds, small_config


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def config_for(folder: Path, cache: Path, *overrides: str) -> RunConfig:
    return small_config(
        folder, cache, "engine=scripted", "train.steps=3", "train.checkpoint_every=2", "eval.tasks=2", "eval.every=1",
        "engine.threads=1", "train.threads=1", "train.learning_rate=1e-3", "sft.optimizer=adamw", *overrides,
    )  # fmt: skip


@dataclass
class Outcome:
    """What must be equal: everything but ids of steps, versions, groups and trajectories."""

    weights: str
    optimizer: str
    rows: list[Any] = field(default_factory=list)
    held_out: list[Any] = field(default_factory=list)


def outcome(folder: Path, run: str) -> Outcome:
    with Store.open(folder / "agentrl.db") as store:
        record = store.find_run(run)
        assert record.status is RunStatus.COMPLETED
        last = checkpoint.latest(Path(record.folder) / "checkpoints")
        assert last is not None and last.name == "step-3"
        files = json.loads((last / "state.json").read_text())["files"]
        result = Outcome(files["model.safetensors"]["sha256"], files["optimizer.tensors"]["sha256"])
        for step in store.steps(run):
            if not step.abandoned:
                result.rows += [_row(store, step.ordinal, row) for row in store.rows_of(run, step.id)]
        result.held_out = [_eval(sample.trajectory) for sample in _evals(store, run)]
    return result


def _row(store: Store, ordinal: int, row: Any) -> Any:
    trajectory = store.load_trajectory(row.trajectory)
    sampled = [(turn.prompt_ids, turn.sampled_ids, turn.logprobs) for turn in trajectory.turns]
    return ordinal, row.batch, row.position, row.advantage, row.ratio_mean, row.weights, sampled


def _eval(trajectory: Trajectory) -> Any:
    return trajectory.task.id, trajectory.sampling_seed, [turn.sampled_ids for turn in trajectory.turns]


def _evals(store: Store, run: str) -> list[Sample]:
    """The held-out rollouts of the surviving line, in the order of the plan."""
    groups = [store.load_group(id) for id in store.queue.groups(run, states=[GroupState.COMPLETE])]
    return [sample for group in groups if group.purpose is Purpose.EVAL for sample in group.samples]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Outcome:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "environment", lambda name: EvenIds)
        summary = asyncio.run(train(config_for(folder, cache), Silent()))
    return outcome(folder, summary.run)


class Died(BaseException):
    """Stands for the end of the process; nothing in the product handles it."""


def dies_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, *, after: bool) -> None:
    """The `call`-th call of a method ends the run, before or after it did its work."""
    real, count = getattr(owner, name), 0

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count != call:
            return real(*args, **options)
        if after:
            real(*args, **options)
        monkeypatch.setattr(owner, name, real)
        raise Died

    monkeypatch.setattr(owner, name, wrapped)


PLACES = {
    "during the first measure": (AgentLoop, "_make_turn", 2, False),
    "in the first rollouts": (AgentLoop, "_make_turn", 8, False),
    "in the third step's rollouts": (AgentLoop, "_make_turn", 32, False),
    "before an update": (Trainer, "step", 2, False),
    "after an update that is not recorded": (Trainer, "step", 3, True),
    "in a checkpoint": (checkpoint, "_replace", 1, False),
    "after a checkpoint": (checkpoint, "_replace", 1, True),
}


SHORT = ("in the third step's rollouts", "after an update that is not recorded", "in a checkpoint")


@pytest.mark.parametrize("place", [pytest.param(p, marks=() if p in SHORT else pytest.mark.long) for p in PLACES])
async def test_J09_a_resumed_run_equals_the_one_that_was_not_stopped(
    tmp_path: Path, cache: Path, whole: Outcome, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    owner, name, call, after = PLACES[place]
    config = config_for(tmp_path, cache)
    with monkeypatch.context() as patch:
        dies_at(patch, owner, name, call, after=after)
        with pytest.raises((Died, BaseExceptionGroup)):
            await train(config, Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        run = store.runs()[0].id
    await resume(config, Silent(), run)
    again = outcome(tmp_path, run)
    assert again == whole and len(again.held_out) == 16
    assert np.isfinite([row[3] for row in again.rows]).all() and any(row[3] for row in again.rows)


async def test_a_cancelled_run_leaves_a_checkpoint_of_its_last_step(
    tmp_path: Path, cache: Path, whole: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, cache, "train.checkpoint_every=0")
    task = asyncio.create_task(train(config, Silent()))

    class StopInStep(Trainer):
        def step(self, rows: Any, step_ordinal: int) -> Any:
            if step_ordinal == 1:
                task.get_loop().call_soon_threadsafe(task.cancel)
            return super().step(rows, step_ordinal)

    monkeypatch.setattr("agentrl.wiring.Trainer", StopInStep)
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    with Store.open(tmp_path / "agentrl.db") as store:
        record = store.runs()[0]
        # The update that was under way was finished and recorded.
        assert record.status is RunStatus.INTERRUPTED and len(store.versions(record.id)) == 3
    last = checkpoint.latest(Path(record.folder) / "checkpoints")
    assert last is not None and last.name == "step-2"
    await resume(config, Silent(), record.id)
    assert outcome(tmp_path, record.id) == whole


async def test_two_processes_cant_work_on_one_run(tmp_path: Path, cache: Path) -> None:
    config = config_for(tmp_path, cache, "train.steps=0", "eval.sampled=false")
    summary = await train(config, Silent())
    with locked(Path(summary.paths["folder"])), pytest.raises(ConfigError, match="at work on this run"):
        await resume(config, Silent(), summary.run)


async def test_other_weights_in_place_of_the_start_are_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, cache, "train.steps=1")
    with monkeypatch.context() as patch:
        dies_at(patch, Trainer, "step", 1, after=False)
        with pytest.raises(Died):
            await train(config, Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        record = store.runs()[0]
    other = await train(config_for(tmp_path / "other", cache, "train.steps=1", "seed=1"), Silent())
    (Path(record.config["model_folder"]) / "model.safetensors").write_bytes(
        (Path(other.paths["checkpoint"]) / "model.safetensors").read_bytes()
    )
    with pytest.raises(ModelError, match="changed since"):
        await resume(config, Silent(), record.id)


async def test_an_environment_with_other_tasks_cant_be_resumed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, cache)
    with monkeypatch.context() as patch:
        dies_at(patch, Trainer, "step", 1, after=False)
        with pytest.raises(Died):
            await train(config, Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        run = store.runs()[0].id
    changed = config.model_copy(deep=True)
    changed.env.options.task_seed = 5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="is another now"):
        await resume(changed, Silent(), run)


async def test_keep_last_and_keep_best(tmp_path: Path, cache: Path) -> None:
    config = config_for(
        tmp_path, cache, "train.steps=5", "train.checkpoint_every=1", "train.keep_last=2", "train.keep_best=false"
    )
    summary = await train(config, Silent())
    folder = Path(summary.paths["folder"]) / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-4", "step-5"]


async def test_a_checkpoint_is_whole_where_the_one_resumed_from_was_deleted_before_it(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizer files came from the folder that the run was resumed from, which `keep_last` deletes."""
    config = config_for(
        tmp_path, cache, "train.steps=4", "train.checkpoint_every=1", "train.keep_last=1", "train.keep_best=false"
    )
    with monkeypatch.context() as patch:
        dies_at(patch, Trainer, "step", 2, after=False)
        with pytest.raises(Died):
            await train(config, Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        record = store.runs()[0]
    first = {path.name for path in (Path(record.folder) / "checkpoints" / "step-1").iterdir()}
    summary = await resume(config, Silent(), record.id)
    last = Path(summary.paths["checkpoint"])
    assert {path.name for path in last.iterdir()} == first > {"tokenizer.json"}
    assert (
        Renderer.from_pretrained(str(last)).template_hash
        == Renderer.from_pretrained(record.config["model_folder"]).template_hash
    )


async def test_c09_bad_updates_stop_the_run_with_a_checkpoint_of_the_last_finite_weights(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, cache, "train.steps=5", "train.checkpoint_every=0", "train.max_bad_updates=2")

    class Poisoned(Trainer):
        def step(self, rows: Any, step_ordinal: int) -> Any:
            if step_ordinal >= 1:
                for row in rows:
                    row.advantages[:] = np.nan
            return super().step(rows, step_ordinal)

    with monkeypatch.context() as patch:
        patch.setattr("agentrl.wiring.Trainer", Poisoned)
        with pytest.raises(BadUpdates, match="2 updates in a row"):
            await train(config, Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        record = store.runs()[0]
        assert record.status is RunStatus.FAILED
        published = [version.weights_hash for version in store.versions(record.id)]
    last = checkpoint.latest(Path(record.folder) / "checkpoints")
    assert last is not None and checkpoint.verify(last)["weights_hash"] == published[-1] != published[0]
    assert (await resume(config, Silent(), record.id)).steps == 5
