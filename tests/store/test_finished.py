"""Whole trajectories that were made elsewhere are written at once."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import Store
from agentrl.types import Grade, Sample, StopReason, Trajectory
from tests.store.builders import artifacts, leased, planned, sql, start_run, task, tool_call, trajectory, turn


def finished(run: str, group: str | None = None, **changes: Any) -> Trajectory:
    turns = [turn(tool_calls=[tool_call(result="é")]), turn(1, (9, 10, 11), keep=5)]
    ending = {"stop_reason": StopReason.COMPLETED, "finished_at": 20.0, "artifacts": artifacts()}
    return trajectory(run, group, **{"turns": turns} | ending | changes)


async def test_what_was_written_at_once_is_as_it_was_given(store: Store) -> None:
    run = await start_run(store)
    grade = Grade(reward=0.5, parts={"x": 1.0}, grader="g", grader_version="1")
    origin = finished(run)
    fork = finished(run, task=task("other"), forked_from=(origin.id, 1), turns=[turn(0, (5,))])
    ids = await store.recorder.add_finished(
        [Sample(trajectory=origin, grade=grade), Sample(trajectory=fork, grade=None)]
    )
    assert ids[1] is None
    assert store.load_sample(origin.id) == Sample(trajectory=origin, grade=grade, grade_id=ids[0])
    assert store.load_trajectory(fork.id) == fork
    assert list(store.verify()) == []


async def test_a_groups_samples_need_its_lease(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    samples = [Sample(trajectory=finished(run, group, sample=place), grade=Grade(reward=1.0)) for place in range(2)]
    with pytest.raises(LeaseLost):
        await store.recorder.add_finished(samples, lease.generation + 1)
    await store.recorder.add_finished(samples, lease.generation)
    await store.queue.complete(lease)
    assert [sample.trajectory for sample in store.load_group(group).samples] == [one.trajectory for one in samples]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stop_reason": None}, "isn't finished"),
        ({"turns": [turn(1)]}, "turn 1 came where 0 was due"),
        ({"turns": [turn(logprobs=[-1.0])]}, "turn 0: 2 sampled ids, but 1 logprobs"),
        ({"turns": [turn(timings={"sample": object()})]}, "can't be stored"),
        ({"run": "none"}, "(?i)foreign key"),
    ],
)
async def test_one_that_does_not_fit_takes_all_along(store: Store, changes: dict[str, Any], says: str) -> None:
    run = await start_run(store)
    bad = finished(**{"run": run} | changes)
    with pytest.raises(StoreError, match=says):
        await store.recorder.add_finished([Sample(trajectory=one, grade=None) for one in (finished(run), bad)])
    assert sql(store.location, "select count(*) from trajectories") == [(0,)]
