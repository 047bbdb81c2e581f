"""What another run may train on of a run's groups: on both databases, in the order of steps and plan."""

from __future__ import annotations

from agentrl.store import Store
from agentrl.types import Grade, GroupState, Purpose, Sampler, StopReason
from tests.store.builders import completed, leased, planned, record, start_run, task, trajectory, turn


async def trained(store: Store, run: str, ordinal: int, *groups: str) -> int:
    """A recorded step that trained on the groups."""
    step = await store.begin_step(run, ordinal=ordinal, version=0)
    await store.queue.claim(run, step, groups)
    await store.record_step(run, step, rows=[], metrics={}, version_after=None)
    return step


async def test_groups_come_by_step_and_place_then_by_ordinal(store: Store) -> None:
    """A run that itself trained on another's groups has those too."""
    live, replay = await start_run(store), await start_run(store)
    first, second, third, waiting = [await completed(store, live, ordinal) for ordinal in (3, 2, 1, 0)]
    late = await trained(store, live, 1, third)
    early = await trained(store, live, 0, second, first)
    again = await trained(store, replay, 0, waiting, third)
    mine = await completed(store, replay, 9)
    assert [(one.id, one.step) for one in store.group_facts(live)] == [
        (second, 0), (first, 0), (third, 1), (waiting, None),
    ]  # fmt: skip
    assert [(one.id, one.step, one.ordinal) for one in store.group_facts(replay)] == [
        (waiting, 0, 0), (third, 0, 1), (mine, None, 9),
    ]  # fmt: skip
    assert store.groups_of(live, early) == [second, first] and store.groups_of(live, late) == [third]
    assert store.groups_of(replay, again) == [waiting, third] and store.groups_of(replay, 7) == []


async def test_only_steps_of_the_surviving_line_that_are_recorded_count(store: Store) -> None:
    run = await start_run(store)
    kept, given_back, open_still = [await completed(store, run, ordinal) for ordinal in range(3)]
    step = await trained(store, run, 0, kept)
    abandoned = await trained(store, run, 1, given_back)
    await store.abandon(run, version=0, step=step)
    await store.queue.claim(run, await store.begin_step(run, ordinal=1, version=0), [open_still])
    assert {one.id: one.step for one in store.group_facts(run)} == {kept: 0, given_back: None, open_still: None}
    assert store.groups_of(run, abandoned) == [given_back]


async def test_samples_are_counted_by_their_last_attempt_and_latest_grade(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run, size=3)
    lease = await leased(store, group)
    failed = trajectory(run, group, sample=0, stop_reason=StopReason.ENV_ERROR)
    await record(store, failed, lease.generation, reward=None)
    await record(store, trajectory(run, group, sample=0, attempt=1), lease.generation)
    human = trajectory(run, group, sample=1, turns=[turn(sampler=Sampler.HUMAN, calls=[])])
    await record(store, human, lease.generation)
    ungradable = trajectory(run, group, sample=2)
    await record(store, ungradable, lease.generation)
    await store.queue.complete(lease)
    (facts,) = store.group_facts(run)
    assert (facts.num_measured, facts.num_from_engine, facts.state) == (3, 2, GroupState.COMPLETE)
    await store.recorder.add_grade(ungradable, Grade(reward=None, unmeasured="the judge was out"))
    (facts,) = store.group_facts(run)
    assert (facts.num_measured, facts.num_from_engine) == (2, 2)


async def test_groups_without_samples_are_there_too(store: Store) -> None:
    run = await start_run(store)
    other = task(env="other")
    await store.queue.plan(run, other, purpose=Purpose.EVAL, ordinal=0, size=2)
    (facts,) = store.group_facts(run)
    assert (facts.env, facts.purpose, facts.state) == ("other", Purpose.EVAL, GroupState.PLANNED)
    assert (facts.num_measured, facts.num_from_engine, facts.step) == (0, 0, None)
