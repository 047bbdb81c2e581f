"""Runs, versions and steps; from a trajectory to its steps and back."""

from __future__ import annotations

import math

import pytest

from agentrl.errors import StoreError
from agentrl.store import RunStatus, StepRow, StepState, Store
from agentrl.types import Grade, GroupState, Purpose, StopReason
from tests.store.builders import completed, leased, planned, record, same, start_run, task, trajectory, turn


def row(trajectory_id: str, grade_id: int | None, position: int = 0, **changes: object) -> StepRow:
    fields = {"batch": 0, "position": position, "trajectory": trajectory_id, "end_turn": 0, "grade_id": grade_id}
    return StepRow(**fields | {"advantage": 0.5, "weights": [(0, 3, 1.0, None), (3, 5, 0.0, "stale")]} | changes)  # type: ignore[arg-type]


async def make_step(store: Store, run: str, ordinal: int, before: int) -> tuple[int, int]:
    step = await store.begin_step(run, ordinal=ordinal, version=before)
    version = await store.add_version(
        run, parent=(run, before), step=step, weights_hash=f"w{step}", ordinal=ordinal + 1
    )
    await store.record_step(run, step, rows=[], metrics={"loss": 0.1}, version_after=version)
    return step, version


async def test_run_is_stored_whole(store: Store) -> None:
    config = {"env": {"name": "toy"}, "note": "a\x00"}
    run = await store.create_run("first", config, seed=7, folder="runs/1", packages={"numpy": "2"}, git_commit="abc")
    [stored] = store.runs()
    assert (stored.id, stored.name, stored.config, stored.seed) == (run, "first", config, 7)
    assert (stored.folder, stored.packages, stored.git_commit) == ("runs/1", {"numpy": "2"}, "abc")
    assert (stored.status, stored.finished_at) == (RunStatus.RUNNING, None)
    await store.finish_run(run, RunStatus.FAILED)
    [stored] = store.runs()
    assert stored.status is RunStatus.FAILED
    assert stored.finished_at is not None and stored.finished_at >= stored.started_at
    with pytest.raises(StoreError, match="no run 'gone'"):
        await store.finish_run("gone")


async def test_facts_of_the_template_are_added_to_a_run_and_change_nothing_else(store: Store) -> None:
    run = await store.create_run("a\x00run", {"note": "a\x00"}, folder="runs/1")
    for stop in ("<|end|>", "<|im_end|>\x00"):  # a resumed run looks again
        await store.describe_template(run, {"stop": stop})
    [stored] = store.runs()
    assert stored.config == {"note": "a\x00", "template": {"stop": "<|im_end|>\x00"}}
    assert (stored.name, stored.folder, stored.status) == ("a\x00run", "runs/1", RunStatus.RUNNING)
    with pytest.raises(StoreError, match="no run 'gone'"):
        await store.describe_template("gone", {})


async def test_ids_are_never_reused_but_ordinals_are(store: Store) -> None:
    run = await start_run(store)
    kept_step, kept = await make_step(store, run, 0, 0)
    await make_step(store, run, 1, kept)
    await store.begin_step(run, ordinal=2, version=2)
    await store.abandon(run, version=kept, step=kept_step)
    step, version = await make_step(store, run, 1, kept)
    assert (step, version) == (3, 3)
    assert [(v.id, v.ordinal, v.abandoned) for v in store.versions(run)] == [
        (0, 0, False),
        (1, 1, False),
        (2, 2, True),
        (3, 2, False),
    ]
    assert [(s.id, s.ordinal, s.abandoned) for s in store.steps(run)] == [
        (0, 0, False),
        (1, 1, True),
        (2, 2, True),
        (3, 1, False),
    ]
    assert store.versions(run)[3].parent == (run, kept)


async def test_ids_count_up_per_run_and_a_parent_may_be_of_another_run(store: Store) -> None:
    first = await start_run(store)
    second = await store.create_run("second", {})
    version = await store.add_version(second, parent=(first, 0), step=None, weights_hash="w0", ordinal=0)
    assert version == 0
    assert store.versions(second)[0].parent == (first, 0)
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        await store.add_version(second, parent=(first, 5), step=None, weights_hash="w", ordinal=1)
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        await store.begin_step(second, ordinal=0, version=1)


async def test_step_is_recorded_once_and_consumes_its_claims(store: Store) -> None:
    run = await start_run(store)
    group = await completed(store, run)
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.queue.claim(run, step, [group])
    metrics = {"loss": math.nan, "groups": 1}
    await store.record_step(run, step, rows=[], metrics=metrics, version_after=None)
    [stored] = store.steps(run)
    assert (stored.state, stored.version_before, stored.version_after) == (StepState.RECORDED, 0, None)
    assert stored.metrics is not None and math.isnan(stored.metrics["loss"])
    assert await store.queue.release_claims(run, step) == 0
    with pytest.raises(StoreError, match="isn't open"):
        await store.record_step(run, step, rows=[], metrics={}, version_after=None)


async def test_from_a_trajectory_to_its_steps_and_back(store: Store) -> None:
    run = await start_run(store)
    one, two = trajectory(run), trajectory(run)
    grades = [await record(store, rollout, num_turns=2) for rollout in (one, two)]
    rows = [
        row(two.id, grades[1], 0, ratio_mean=1.0, ratio_max=1.5, clip_share=0.25),
        row(one.id, grades[0], 1, ratio_mean=math.nan),
        row(one.id, grades[0], 2, end_turn=1, advantage=-0.5),
    ]
    steps = [await store.begin_step(run, ordinal=0, version=0) for _ in range(2)]
    await store.record_step(run, steps[0], rows=list(reversed(rows)), metrics={}, version_after=None)
    await store.record_step(run, steps[1], rows=[row(one.id, None)], metrics={}, version_after=None)
    assert all(same(a, b) for a, b in zip(store.rows_of(run, steps[0]), rows, strict=True))
    assert store.trajectories_of(run, steps[0]) == [two.id, one.id]
    assert store.trajectories_of(run, 99) == []
    [use] = store.steps_of(two.id)
    assert (use.run, use.step, use.ordinal, use.abandoned, use.row) == (run, steps[0], 0, False, rows[0])
    assert [(use.step, use.row.end_turn) for use in store.steps_of(one.id)] == [(0, 0), (0, 1), (1, 0)]


async def test_rows_of_an_unknown_turn_are_refused_with_the_whole_step(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    await record(store, rollout)
    step = await store.begin_step(run, ordinal=0, version=0)
    with pytest.raises(StoreError, match=r"(?i)foreign key"):
        await store.record_step(run, step, rows=[row(rollout.id, None, end_turn=4)], metrics={}, version_after=None)
    assert store.steps(run)[0].state is StepState.BEGUN


async def test_j10_going_back_releases_claims_and_archives_what_abandoned_versions_sampled(store: Store) -> None:
    run = await start_run(store)
    used, lost = await completed(store, run, 0), await completed(store, run, 1)
    step0, version1 = await make_step(store, run, 0, 0)
    step1 = await store.begin_step(run, ordinal=1, version=version1)
    await store.queue.claim(run, step1, [lost])
    version2 = await store.add_version(run, parent=(run, 1), step=step1, weights_hash="w", ordinal=2)
    await store.record_step(run, step1, rows=[], metrics={}, version_after=version2)
    late = await store.queue.plan(run, task(), purpose=Purpose.TRAIN, ordinal=2, size=2, version=version2)
    mixed = await planned(store, run, 3)
    lease = await leased(store, mixed)
    newer = turn()
    newer.calls[0].version = version2
    await record(store, trajectory(run, mixed, turns=[newer]), lease.generation)
    running = trajectory(run, mixed, sample=1)
    await store.recorder.begin(running, lease.generation)
    await store.abandon(run, version=version1, step=step0)
    assert store.queue.claimable(run) == [used, lost]
    assert store.queue.groups(run, states=[GroupState.ARCHIVED]) == [late, mixed]
    assert store.load_trajectory(running.id).stop_reason is StopReason.INTERRUPTED
    assert await store.queue.lease("w", 60.0) == []
    with pytest.raises(StoreError, match="no surviving version 2"):
        await store.abandon(run, version=version2, step=step1)


async def test_an_abandoned_step_can_not_be_recorded_or_claim(store: Store) -> None:
    run = await start_run(store)
    group = await completed(store, run)
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.abandon(run, version=0, step=None)
    with pytest.raises(StoreError, match="isn't open"):
        await store.record_step(run, step, rows=[], metrics={}, version_after=None)
    with pytest.raises(StoreError, match="isn't open"):
        await store.queue.claim(run, step, [group])


async def test_trajectories_are_found_by_what_they_are(store: Store) -> None:
    run, other = await start_run(store), await start_run(store)
    group = await planned(store, run, purpose=Purpose.EVAL)
    lease = await leased(store, group)
    cut = trajectory(run, group, started_at=1.0, stop_reason=StopReason.MAX_TURNS, error="x")
    await record(store, cut, lease.generation, num_turns=2, reward=0.5)
    alien = trajectory(other, task=task(env="else"), started_at=2.0)
    await record(store, alien, reward=None)
    running = trajectory(run, started_at=3.0)
    await store.recorder.begin(running, 0)

    def ids(**filters: object) -> list[str]:
        return [summary.id for summary in store.find_trajectories(**filters)]  # type: ignore[arg-type]

    assert ids() == [running.id, alien.id, cut.id]
    assert ids(limit=1) == [running.id]
    assert ids(run=run) == [running.id, cut.id]
    assert ids(env="else") == [alien.id]
    assert ids(purpose=Purpose.EVAL) == [cut.id]
    assert ids(stop_reason=StopReason.MAX_TURNS) == [cut.id]
    assert ids(stop_reason="running") == [running.id]
    assert ids(run=other, purpose=Purpose.EVAL) == []
    [summary] = store.find_trajectories(purpose=Purpose.EVAL)
    assert (summary.reward, summary.num_turns, summary.num_sampled, summary.error) == (0.5, 2, 4, "x")
    assert (summary.env, summary.task_id, summary.split, summary.group) == ("toy", "t0", "train", group)


async def test_only_the_latest_grade_is_in_a_summary(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    await record(store, rollout, reward=0.5)
    await store.recorder.add_grade(rollout, Grade(reward=0.75))
    assert [summary.reward for summary in store.find_trajectories()] == [0.75]


async def test_ids_are_found_by_their_start(store: Store) -> None:
    run = await start_run(store)
    for id in ("ab_1", "ab_2", "abx2", "c"):
        await record(store, trajectory(run, id=id))
    assert store.resolve("run", run[:8]) == run
    assert store.resolve("trajectory", "ab_2") == "ab_2"
    assert store.resolve("trajectory", "abx") == "abx2"
    with pytest.raises(StoreError, match="the start of 2 trajectory ids: ab_1, ab_2"):
        store.resolve("trajectory", "ab_")
    with pytest.raises(StoreError, match="no trajectory id starts with 'ab_3'; near: ab_"):
        store.resolve("trajectory", "ab_3")
    with pytest.raises(StoreError, match="there are none"):
        store.resolve("group", "x")
    for odd in ("a\x00", "\udcff"):
        with pytest.raises(StoreError, match="no trajectory id starts with"):
            store.resolve("trajectory", odd)


async def test_missing_records_are_named(store: Store) -> None:
    with pytest.raises(StoreError, match="no trajectory 'gone'"):
        store.load_trajectory("gone")
    with pytest.raises(StoreError, match="no group 'gone'"):
        store.load_group("gone")


async def test_j11_the_same_task_twice_in_one_step_is_two_groups_with_rows_of_their_own(store: Store) -> None:
    run = await start_run(store)
    groups = [await completed(store, run, ordinal) for ordinal in (0, 1)]
    loaded = [store.load_group(group) for group in groups]
    assert loaded[0].task == loaded[1].task
    samples = [sample for group in loaded for sample in group.samples]
    places = {(s.trajectory.run, s.trajectory.group, s.trajectory.sample, s.trajectory.attempt) for s in samples}
    assert len(places) == len({s.trajectory.id for s in samples}) == 4
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.queue.claim(run, step, groups)
    rows = [row(s.trajectory.id, s.grade_id, place) for place, s in enumerate(samples)]
    await store.record_step(run, step, rows=rows, metrics={}, version_after=None)
    assert [use.row for s in samples for use in store.steps_of(s.trajectory.id)] == rows


async def test_j11_a_replay_counts_age_from_sampling_and_leaves_what_is_stored_as_it_was(store: Store) -> None:
    first, later = await start_run(store), await start_run(store)
    group = await completed(store, first)
    before = store.load_group(group)
    for ordinal in range(5):
        await make_step(store, later, ordinal, ordinal)
    step = await store.begin_step(later, ordinal=5, version=5)
    await store.queue.claim(later, step, [group])
    rows = [row(s.trajectory.id, s.grade_id, place) for place, s in enumerate(before.samples)]
    await store.record_step(later, step, rows=rows, metrics={}, version_after=None)
    after = store.load_group(group)
    assert after == before
    ages = {5 - version for s in after.samples for turn in s.trajectory.turns for version in turn.versions}
    assert ages == {5}


async def test_staleness_counts_versions_from_sampling_along_the_line(store: Store) -> None:
    first, later = await start_run(store), await store.create_run("later", {})
    group = await completed(store, first)
    _, version1 = await make_step(store, first, 0, 0)
    _, version2 = await make_step(store, first, 1, version1)
    await store.add_version(later, parent=(first, version2), step=None, weights_hash="w", ordinal=0)
    _, after = await make_step(store, later, 0, 0)
    other = await start_run(store)
    sample = store.load_group(group).samples[0]
    steps = [(first, version2), (later, after), (other, 0)]
    for run, version in steps:
        step = await store.begin_step(run, ordinal=9, version=version)
        await store.record_step(
            run, step, rows=[row(sample.trajectory.id, sample.grade_id)], metrics={}, version_after=None
        )
    ages = {(use.run, use.version_before): use.staleness for use in store.steps_of(sample.trajectory.id)}
    assert ages == {(first, 2): 2, (later, after): 3, (other, 0): None}


async def test_all_grades_of_a_trajectory_are_kept_with_what_the_grader_wrote(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    first = await record(store, rollout)
    log = "2 failed\x00, 1 passed\n"
    second = await store.recorder.add_grade(rollout, Grade(reward=0.0, grader="pytest", output=log))
    grades = store.grades_of(rollout.id)
    assert list(grades) == [first, second] and grades[second].output == log
    assert store.grades_of("gone") == {}
