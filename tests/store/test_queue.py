"""Groups from planned to archived, leases and claims."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import Lease, Store
from agentrl.types import Grade, GroupState, Purpose, StopReason
from tests.store.builders import completed, leased, planned, record, sql, start_run, task, trajectory, turn

SQLITE_NOW = "cast(strftime('%s', 'now') as real)"


def expire(store: Store, group: str) -> None:
    """As if the lease's time had run out."""
    sql(store.location, f"update groups set lease_until = 1.0 where id = '{group}'")


def state(store: Store, group: str) -> GroupState:
    return store.load_group(group).state


async def test_next_group_is_the_free_one_with_the_lowest_ordinal(store: Store) -> None:
    run = await start_run(store)
    second, first = await planned(store, run, 1), await planned(store, run, 0)
    other = await planned(store, run, 0, purpose=Purpose.EVAL)
    leases = await store.queue.lease("w", 60.0, run=run, purpose=Purpose.TRAIN, limit=5)
    assert [lease.group for lease in leases] == [first, second]
    assert [(lease.generation, lease.reissue) for lease in leases] == [(1, 0), (1, 0)]
    assert await store.queue.lease("w", 60.0, run=run, purpose=Purpose.TRAIN) == []
    assert await store.queue.lease("w", 60.0, run="elsewhere") == []
    assert [lease.group for lease in await store.queue.lease("w", 60.0)] == [other]


async def test_a_held_group_is_not_given_to_another_owner(store: Store) -> None:
    run = await start_run(store)
    group, free = await planned(store, run), await planned(store, run, 1)
    await leased(store, group, "a")
    with pytest.raises(StoreError, match="owner a"):
        await store.queue.lease("b", 60.0, groups=[free, group])
    assert state(store, free) is GroupState.PLANNED


async def test_two_stores_never_lease_one_group_twice(store: Store) -> None:
    run = await start_run(store)
    groups = [await planned(store, run, ordinal) for ordinal in range(20)]
    with Store.open(store.location) as other:
        calls = [one.queue.lease(f"w{i}", 60.0) for i in range(10) for one in (store, other)]
        leases = await asyncio.gather(*calls)
    assert sorted(lease.group for [lease] in leases) == sorted(groups)


async def test_lease_that_ran_out_is_reissued_and_what_was_finished_stays(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    old = await leased(store, group, "dead")
    done, running = trajectory(run, group, sample=0), trajectory(run, group, sample=1, attempt=1)
    await record(store, done, old.generation)
    await store.recorder.begin(running, old.generation)
    expire(store, group)
    [new] = await store.queue.lease("alive", 60.0)
    assert (new.group, new.generation, new.reissue) == (group, old.generation + 1, 1)
    samples = store.load_group(group).samples
    assert [sample.trajectory.id for sample in samples] == [done.id, running.id]
    assert [sample.trajectory.stop_reason for sample in samples] == [StopReason.COMPLETED, StopReason.LOST]
    again = trajectory(run, group, sample=1, reissue=new.reissue)
    await record(store, again, new.generation)
    await store.queue.complete(new)
    assert [sample.trajectory.id for sample in store.load_group(group).samples] == [done.id, again.id]


async def test_stale_worker_can_not_write(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    old = await leased(store, group, "slow")
    finished, running = trajectory(run, group), trajectory(run, group, sample=1, turns=[])
    await record(store, finished, old.generation, reward=None)
    await store.recorder.begin(running, old.generation)
    await store.recorder.add_turn(running, turn())
    expire(store, group)
    await store.queue.lease("fast", 60.0)
    stale = [
        store.recorder.begin(trajectory(run, group, sample=1, attempt=1), old.generation),
        store.recorder.add_turn(running, turn(1)),
        store.recorder.update_turn(running, turn(0, reward=1.0)),
        store.recorder.add_grade(finished, Grade(reward=1.0)),
        store.queue.heartbeat(old, 60.0),
        store.queue.release(old),
        store.queue.complete(old),
        store.queue.drop(group, "late", lease=old),
    ]
    running.turns, running.stop_reason = [turn()], StopReason.COMPLETED
    stale.append(store.recorder.finish(running))
    for write in stale:
        with pytest.raises(LeaseLost, match="owner fast"):
            await write
    kept = store.load_trajectory(running.id)
    assert (kept.stop_reason, len(kept.turns), kept.turns[0].reward) == (StopReason.LOST, 1, 0.0)
    assert store.load_group(group).samples[0].grade is None


@pytest.mark.parametrize("change", ["lease_generation = lease_generation + 1", "state = 'planned'"])
async def test_each_write_checks_the_lease_by_itself(store: Store, change: str) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    running = trajectory(run, group)
    await store.recorder.begin(running, lease.generation)
    sql(store.location, f"update groups set {change}")
    with pytest.raises(LeaseLost):
        await store.recorder.add_turn(running, turn())
    assert store.load_trajectory(running.id).turns == []


async def test_lease_that_ran_out_but_was_not_taken_is_still_held(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    expire(store, group)
    await record(store, trajectory(run, group), lease.generation)
    renewed = await store.queue.heartbeat(lease, 60.0)
    assert renewed.until > 1.0
    assert await store.queue.lease("other", 60.0) == []


async def test_heartbeat_extends_by_the_clock_of_the_database(store: Store) -> None:
    run = await start_run(store)
    lease = await leased(store, await planned(store, run), ttl_s=10.0)
    renewed = await store.queue.heartbeat(lease, 1000.0)
    assert 980.0 < renewed.until - lease.until < 1100.0
    is_sqlite = "://" not in store.location
    [[now]] = sql(store.location, f"select {SQLITE_NOW if is_sqlite else 'extract(epoch from now())::float8'}")
    assert now + 900.0 < renewed.until < now + 1100.0


async def test_restarted_owner_gets_its_group_as_a_reissue(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    first = await leased(store, group, "run-1")
    second = await leased(store, group, "run-1")
    assert (second.generation, second.reissue) == (first.generation + 1, 1)


async def test_released_group_is_planned_again(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    running = trajectory(run, group)
    await store.recorder.begin(running, lease.generation)
    await store.queue.release(lease)
    assert state(store, group) is GroupState.PLANNED
    assert store.load_trajectory(running.id).stop_reason is StopReason.LOST
    with pytest.raises(LeaseLost):
        await store.recorder.begin(trajectory(run, group, sample=1), lease.generation)


async def test_group_is_complete_only_when_final_attempts_are_finished_and_graded(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run, size=4)
    lease = await leased(store, group)
    failed = trajectory(run, group, sample=0, stop_reason=StopReason.ENV_ERROR)
    await record(store, failed, lease.generation, reward=None)
    await store.recorder.begin(trajectory(run, group, sample=1), lease.generation)
    ungraded = trajectory(run, group, sample=2)
    await record(store, ungraded, lease.generation, reward=None)
    problems = "sample 3 was never begun, sample 1 is unfinished, sample 2 is ungraded"
    with pytest.raises(StoreError, match=problems):
        await store.queue.complete(lease)
    await store.recorder.add_grade(ungraded, Grade(reward=None, unmeasured="no box"))
    await record(store, trajectory(run, group, sample=1, attempt=1), lease.generation)
    await record(store, trajectory(run, group, sample=3), lease.generation)
    await store.queue.complete(lease)
    loaded = store.load_group(group)
    assert loaded.state is GroupState.COMPLETE
    assert [sample.reward for sample in loaded.samples] == [None, 1.0, None, 1.0]
    assert [sample.trajectory.attempt for sample in loaded.samples] == [0, 1, 0, 0]


async def test_grades_can_be_appended_after_the_group_is_complete(store: Store) -> None:
    run = await start_run(store)
    group = await completed(store, run)
    first = store.load_group(group).samples[0]
    await store.recorder.add_grade(first.trajectory, Grade(reward=0.25))
    assert store.load_group(group).samples[0].reward == 0.25


@pytest.mark.parametrize("end", ["drop", "archive"])
async def test_a_group_ends_once(store: Store, end: str) -> None:
    run = await start_run(store)
    group = await completed(store, run)
    if end == "drop":
        await store.queue.drop(group, "fewer than two measured samples")
    else:
        await store.queue.archive(group)
    assert state(store, group) is (GroupState.DROPPED if end == "drop" else GroupState.ARCHIVED)
    with pytest.raises(StoreError, match="already"):
        await store.queue.archive(group)
    assert await store.queue.lease("w", 60.0) == []


async def test_leased_group_is_dropped_only_with_its_lease(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    with pytest.raises(LeaseLost):
        await store.queue.drop(group, "why not")
    await store.queue.drop(group, "no sample was measured", lease=lease)
    assert store.queue.groups(run, states=[GroupState.DROPPED]) == [group]
    assert store.queue.groups(run, states=[GroupState.LEASED]) == []


async def test_a_run_claims_a_group_once(store: Store) -> None:
    run = await start_run(store)
    groups = [await completed(store, run, ordinal) for ordinal in (1, 0)]
    assert store.queue.claimable(run) == [groups[1], groups[0]]
    assert store.queue.claimable(run, limit=1) == [groups[1]]
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.queue.claim(run, step, groups[:1])
    later = await store.begin_step(run, ordinal=1, version=0)
    with pytest.raises(StoreError, match=f"claimed by step {step}"):
        await store.queue.claim(run, later, [groups[1], groups[0]])
    assert store.queue.claimable(run) == [groups[1]]
    assert await store.queue.consume(run, step) == 1
    assert await store.queue.release_claims(run, step) == 0
    assert store.queue.claimable(run) == [groups[1]]


async def test_released_claim_can_be_made_again(store: Store) -> None:
    run = await start_run(store)
    group = await completed(store, run)
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.queue.claim(run, step, [group])
    assert await store.queue.release_claims(run, step) == 1
    await store.queue.claim(run, step, [group])
    assert store.queue.claimable(run) == []


async def test_two_stores_claim_a_group_once(store: Store) -> None:
    run = await start_run(store)
    groups = [await completed(store, run, ordinal) for ordinal in range(5)]
    steps = [await store.begin_step(run, ordinal=i, version=0) for i in range(2)]
    with Store.open(store.location) as other:
        calls = [
            one.queue.claim(run, step, [group])
            for group in groups
            for one, step in zip((store, other), steps, strict=True)
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [sum(outcome is None for outcome in outcomes[i : i + 2]) for i in range(0, 10, 2)] == [1] * 5


async def test_another_run_may_replay_an_archived_group(store: Store) -> None:
    first, second = await start_run(store), await start_run(store)
    group = await completed(store, first)
    await store.queue.archive(group)
    own, foreign = [await store.begin_step(run, ordinal=0, version=0) for run in (first, second)]
    with pytest.raises(StoreError, match="archived"):
        await store.queue.claim(first, own, [group])
    await store.queue.claim(second, foreign, [group])
    with pytest.raises(StoreError, match="already"):
        await store.queue.claim(second, foreign, [group])


async def test_only_complete_train_groups_can_be_claimed(store: Store) -> None:
    run = await start_run(store)
    evaluation = await completed(store, run, purpose=Purpose.EVAL)
    group = await planned(store, run)
    step = await store.begin_step(run, ordinal=0, version=0)
    with pytest.raises(StoreError, match="only train groups"):
        await store.queue.claim(run, step, [evaluation])
    with pytest.raises(StoreError, match="only complete groups"):
        await store.queue.claim(run, step, [group])
    with pytest.raises(StoreError, match="no group 'gone'"):
        await store.queue.claim(run, step, ["gone"])
    assert store.queue.claimable(run) == []


async def test_j11_a_finished_trajectory_can_not_be_changed(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease: Lease = await leased(store, group)
    rollout = trajectory(run, group)
    await record(store, rollout, lease.generation)
    before = store.load_trajectory(rollout.id)
    for write in (
        store.recorder.add_turn(rollout, turn(1)),
        store.recorder.update_turn(rollout, turn(0, reward=9.0)),
        store.recorder.finish(rollout),
    ):
        with pytest.raises(StoreError, match="is finished"):
            await write
    assert store.load_trajectory(rollout.id) == before


async def test_rollout_is_begun_once_and_finished_whole(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    with pytest.raises(StoreError, match="never begun"):
        await store.recorder.add_turn(rollout, turn())
    await store.recorder.begin(rollout, 0)
    with pytest.raises(StoreError, match=r"(?i)unique"):
        await store.recorder.begin(rollout, 0)
    with pytest.raises(StoreError, match="without a stop reason"):
        await store.recorder.finish(rollout)
    with pytest.raises(StoreError, match="turn 0 was never added"):
        await store.recorder.update_turn(rollout, turn())
    with pytest.raises(StoreError, match="isn't finished"):
        await store.recorder.add_grade(rollout, Grade(reward=1.0))
    rollout.turns, rollout.stop_reason = [turn()], StopReason.COMPLETED
    with pytest.raises(StoreError, match="1 turns, of which 0 were recorded"):
        await store.recorder.finish(rollout)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample": 2}, "sample 2 in a group of 2"),
        ({"task": task("other", data={})}, "task is"),
        ({"run": "elsewhere"}, "run_id is elsewhere"),
    ],
)
async def test_sample_that_is_not_of_the_group_is_refused(store: Store, changes: Any, message: str) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    with pytest.raises(StoreError, match=message):
        await store.recorder.begin(trajectory(**{"run": run, "group": group} | changes), lease.generation)
    assert store.load_group(group).samples == []
