"""After a resume the data goes on where it was: no task is left out, none comes twice (J08)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.config import RunConfig
from agentrl.progress import Silent
from agentrl.rollout.loop import AgentLoop
from agentrl.run import resume, train
from agentrl.store import Store
from agentrl.testing.audit import audit
from agentrl.train.trainer import Trainer
from agentrl.types import Group, GroupState, Purpose
from tests.small import EvenIds, small_config
from tests.test_resume import Died, dies_at

STEPS, BATCH, TASKS = 5, 3, 10


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def config_for(folder: Path, cache: Path) -> RunConfig:
    return small_config(
        folder, cache, f"train.steps={STEPS}", f"algorithm.groups_per_step={BATCH}", "algorithm.group_size=2",
        f"env.train_tasks={TASKS}", "train.checkpoint_every=2", "eval.tasks=1", "eval.sampled=false",
        "rollout.concurrency=1", "train.updates_per_step=1",
    )  # fmt: skip


def order(folder: Path, run: str) -> list[list[str]]:
    """The tasks of each surviving step, in the order of the plan."""
    with Store.open(folder / "agentrl.db") as store:
        steps = [step.id for step in store.steps(run) if not step.abandoned]
        groups = {group.id: group for group in train_groups(store, run)}
        used = [{store.load_trajectory(t).group for t in store.trajectories_of(run, step)} for step in steps]
    by_plan = [sorted((groups[id] for id in ids if id), key=lambda group: group.ordinal) for ids in used]
    return [[group.task.id for group in step] for step in by_plan]


def train_groups(store: Store, run: str) -> list[Group]:
    loaded = [store.load_group(id) for id in store.queue.groups(run)]
    return [group for group in loaded if group.purpose is Purpose.TRAIN]


IN_FLIGHT = ("in flight", AgentLoop, "grade", 1 + 2 * (2 * BATCH) + 4)
"""A measure, two steps, and some of the third."""
ACCEPTED = ("accepted, not used", Trainer, "step", 3)


@pytest.mark.parametrize("place, owner, name, call", [IN_FLIGHT, pytest.param(*ACCEPTED, marks=pytest.mark.long)])
async def test_j08_the_order_is_that_of_the_run_that_was_not_stopped(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, place: str, owner: Any, name: str, call: int
) -> None:
    whole = await train(config_for(tmp_path / "whole", cache), Silent())
    expected = order(tmp_path / "whole", whole.run)
    flat = [task for step in expected for task in step]
    assert [len(step) for step in expected] == [BATCH] * STEPS
    assert len(set(flat[:TASKS])) == TASKS, "an epoch holds every task once"
    assert flat[TASKS:] != flat[: STEPS * BATCH - TASKS], "each epoch has an order of its own"

    folder = tmp_path / name
    with monkeypatch.context() as patch:
        dies_at(patch, owner, name, call, after=False)
        with pytest.raises((Died, BaseExceptionGroup)):
            await train(config_for(folder, cache), Silent())
    with Store.open(folder / "agentrl.db") as store:
        run = store.runs()[0].id
        left = [group for group in train_groups(store, run) if group.state is not GroupState.ARCHIVED]
        kept = {s.trajectory.id for group in left for s in group.samples if s.grade is not None}
    assert len(left) == BATCH and len(kept) == (3 if place == "in flight" else 2 * BATCH)
    await resume(config_for(folder, cache), Silent(), run)
    assert order(folder, run) == expected, place
    with Store.open(folder / "agentrl.db") as store:
        again = [store.load_group(group.id) for group in left]
        assert kept <= {s.trajectory.id for group in again for s in group.samples}, "what was finished is used"
        assert {group.reissue for group in again} == ({1} if place == "in flight" else {0})
        used = [use.step for id in kept for use in store.steps_of(id) if not use.abandoned]
    assert len(used) == len(kept) and len(set(used)) == 1
    assert audit(folder / "agentrl.db") == []
