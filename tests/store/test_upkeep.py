"""What a database holds, whether it is as it was written, and what may go."""

from __future__ import annotations

import re

import pytest

from agentrl.errors import StoreError
from agentrl.store import RunStatus, StepRow, Store
from agentrl.testing.audit import audit
from agentrl.types import Artifacts, GroupState, Message, StopReason
from tests.store.builders import (
    artifacts,
    completed,
    leased,
    planned,
    record,
    sql,
    start_run,
    task,
    tool_call,
    trajectory,
    turn,
)

YEAR_S = 365 * 24 * 3600.0


async def trained(store: Store, run: str, *, of: str | None = None) -> str:
    """A complete group that a step of the run (or of the run `of`) trained on."""
    group = await completed(store, run)
    user = of or run
    step = await store.begin_step(user, ordinal=0, version=0)
    await store.queue.claim(user, step, [group])
    rows = [
        StepRow(
            batch=0, position=place, trajectory=sample.trajectory.id, end_turn=0, grade_id=sample.grade_id,
            advantage=0.5, weights=[(3, 5, 0.0, "stale")],
        )
        for place, sample in enumerate(store.load_group(group).samples)
    ]  # fmt: skip
    await store.record_step(user, step, rows=rows, metrics={}, version_after=None)
    return group


@pytest.fixture
async def filled(store: Store) -> Store:
    """One run with a record in every table."""
    run = await start_run(store)
    await trained(store, run)
    kept = artifacts()
    kept.files["long"] = b"long" * 100
    one = trajectory(run, id="one", turns=[turn(tool_calls=[tool_call()]), turn(1, keep=5)], artifacts=kept)
    await record(store, one)
    return store


async def test_stats_count_records_and_bytes(filled: Store) -> None:
    tables = {one.table: one for one in filled.table_stats()}
    assert len(tables) == 15 and all(one.num_records > 0 for one in tables.values())
    assert tables["trajectories"].num_records == 3 and tables["turns"].num_records == 4
    [[blobs]] = sql(
        filled.location, "select sum(length(prompt_ids) + length(sampled_ids) + length(logprobs)) from turns"
    )
    assert blobs == 12 + 8 + 4 * 8 < tables["turns"].num_bytes
    [run] = filled.run_stats()
    assert (run.num_groups, run.num_trajectories, run.num_turns, run.num_sampled, run.num_steps) == (1, 3, 4, 8, 1)
    assert run.num_bytes == tables["turns"].num_bytes and run.status is RunStatus.RUNNING


async def test_text_is_counted_in_bytes(store: Store) -> None:
    await start_run(store)
    before = {one.table: one.num_bytes for one in store.table_stats()}["runs"]
    await store.create_run("ü" * 1000, {"env": {"name": "toy"}}, seed=3)
    after = {one.table: one.num_bytes for one in store.table_stats()}["runs"]
    assert 2000 < after - before < 2200


async def test_a_good_database_verifies(filled: Store) -> None:
    assert list(filled.verify()) == []


HARMS = {
    "turns: trajectory_id=one, turn=0: 1 sampled ids, but 2 logprobs": "update turns set "
    "sampled_ids = substr(sampled_ids, 1, 1) "
    "where trajectory_id = 'one' and turn = 0",
    "turns: trajectory_id=one, turn=1: 2 sampled ids, but 1 logprobs": "update turns set "
    "logprobs = substr(logprobs, 1, 4) where trajectory_id = 'one' and turn = 1",
    "tasks: identity=.*: the key of its content is": "update tasks set env = 'forged'",
    "tasks: identity=.*: the identity of its content is": "update tasks set split = 'forged'",
    "trajectories: id=one: .*engine calls cover 1": "update engine_calls set span_end = 1 "
    "where trajectory_id = 'one' and turn = 1",
    "trajectories: id=one: it says 7 turns, but has 2": "update trajectories set num_turns = 7 where id = 'one'",
    "trajectories: id=one: it says 9 sampled ids, but has 4": "update trajectories set num_sampled = 9 "
    "where id = 'one'",
    "trajectories: id=one: turn 1 keeps 6 ids": "update turns set keep = 6 where trajectory_id = 'one' and turn = 1",
    "trajectories: id=one: 'shrug' is not a valid StopReason": "update trajectories set stop_reason = 'shrug' "
    "where id = 'one'",
    "trajectories: id=.*: step 0 of run .* weighs ids .3, 99.": "update step_rows set "
    "weights = '[[3, 99, 0.0, \"stale\"]]' where position = 0",
    "step_rows: .*position=1: ids .3, 5. have weight 0": "update step_rows set weights = '[[3, 5, 0.0, null]]' "
    "where position = 1",
    "step_rows: .*position=1: its trajectory_id, end_turn names no record of turns": "update step_rows set "
    "trajectory_id = 'gone' where position = 1",
    "step_rows: .*position=0: its grade is another trajectory's": "update step_rows set "
    "grade_id = (select max(id) from grades) where position = 0",
    "grades: id=.*: its trajectory_id names no record of trajectories": "update grades set trajectory_id = 'gone' "
    "where trajectory_id = 'one'",
    "blobs: hash=[0-9a-f]{32}: the hash of its content is": "update blobs set content = hash",
    "artifact_files: .*: its content_hash names no record of blobs": "delete from blobs",
    "trajectories: id=one: its content is in blob .*, which is gone": "delete from blobs",
    "trajectories: id=one: it says env forged": "update trajectories set env = 'forged' where id = 'one'",
    "trajectories: id=one: it says env toy, reward 0.5, but has toy, 1.0": "update trajectories set reward = 0.5 "
    "where id = 'one'",
    "claims: id=1: 'shrug' is not a valid ClaimState": "update claims set state = 'shrug'",
    "versions: run_id=.*, id=0: it is its own parent": "update versions set parent_run_id = run_id, "
    "parent_version = id",
}


@pytest.mark.parametrize("says", HARMS)
async def test_each_bad_record_is_named_and_the_rest_is_still_looked_at(filled: Store, says: str) -> None:
    harm(filled, HARMS[says], "update runs set status = 'shrug'")
    found = [str(damage) for damage in filled.verify()]
    assert any(re.match(says, one) for one in found), found
    assert any(re.match("runs: id=.*: 'shrug' is not a valid RunStatus", one) for one in found)


def harm(store: Store, *statements: str) -> None:
    """Change records without the checks that would refuse it."""
    is_server = "://" in store.location
    sql(
        store.location,
        "set session_replication_role = replica" if is_server else "pragma foreign_keys = 0",
        *statements,
    )


async def test_verify_reads_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.store.damage.PAGE", 3)
    run = await start_run(store)
    for number in range(8):
        await record(store, trajectory(run, id=f"t{number}"), num_turns=2)
    harm(store, "update turns set sampler = 'shrug' where trajectory_id in ('t2', 't7') and turn = 1")
    named = [damage.record for damage in store.verify()]
    assert named == ["trajectory_id=t2, turn=1", "trajectory_id=t7, turn=1"]


async def ended(store: Store, run: str) -> None:
    await store.finish_run(run, RunStatus.COMPLETED)


async def test_rollouts_of_dropped_and_abandoned_groups_may_go_and_nothing_else(store: Store) -> None:
    run = await start_run(store)
    used = await trained(store, run)
    waiting = await completed(store, run, 1)
    dropped, abandoned = await completed(store, run, 2), await completed(store, run, 3)
    await store.queue.drop(dropped, "fewer than two measured samples")
    await store.queue.archive(abandoned)
    forked = await completed(store, run, 4)
    origin = store.load_group(forked).samples[0].trajectory
    await store.queue.drop(forked, "x")
    await record(store, trajectory(run, id="fork", forked_from=(origin.id, 0)))
    assert store.garbage().trajectories == []  # the run is running
    await ended(store, run)
    due = {s.trajectory.id for group in (dropped, abandoned, forked) for s in store.load_group(group).samples}
    due -= {origin.id}
    assert set(store.garbage().trajectories) == due
    assert store.garbage(older_than_s=YEAR_S * 100).trajectories == []
    before = {one.id for one in store.find_trajectories()}
    assert set((await store.remove_garbage()).trajectories) == due
    assert {one.id for one in store.find_trajectories()} == before - due
    assert [len(store.load_group(group).samples) for group in (used, waiting, dropped)] == [2, 2, 0]
    assert list(store.verify()) == [] and audit(store.location) == []
    assert store.garbage().trajectories == []


async def test_a_whole_run_may_go_with_all_its_records(filled: Store) -> None:
    [run] = [record.id for record in filled.runs()]
    kept = await start_run(filled)
    own = trajectory(kept, task=task("kept"))
    await record(filled, own)
    with pytest.raises(StoreError, match=f"run {run} is running"):
        filled.garbage(runs=[run])
    assert filled.garbage(runs=[run], dead=[run]).runs == [run]
    await ended(filled, run)
    found = await filled.remove_garbage(runs=[run])
    assert (found.runs, found.num_tasks) == ([run], 1)
    assert [record.id for record in filled.runs()] == [kept]
    assert filled.load_trajectory(own.id) == own
    counts = {one.table: one.num_records for one in filled.table_stats()}
    assert (
        counts["turns"] == counts["tasks"] == counts["versions"] == 1 and counts["step_rows"] == counts["groups"] == 0
    )
    assert list(filled.verify()) == []


async def test_a_run_that_another_one_needs_stays(store: Store) -> None:
    origin, user, child = [await start_run(store) for _ in range(3)]
    await trained(store, origin, of=user)
    late = await store.create_run("late", {})
    await store.add_version(late, parent=(child, 0), step=None, weights_hash="w", ordinal=0)
    for run in (origin, user, child, late):
        await ended(store, run)
    with pytest.raises(StoreError, match=f"run {origin} has to stay: run {user} trains on its rollouts"):
        store.garbage(runs=[origin])
    with pytest.raises(StoreError, match=f"run {child} has to stay: run {late} starts from its weights"):
        await store.remove_garbage(runs=[child])
    assert len(store.runs()) == 4
    await store.remove_garbage(runs=[origin, user, child, late])
    assert store.runs() == [] and {one.num_records for one in store.table_stats()} == {0}


async def test_a_rollout_that_still_runs_stays(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    lease = await leased(store, group)
    await store.recorder.begin(trajectory(run, group, id="cut"), lease.generation)
    await ended(store, run)
    assert store.garbage().trajectories == []
    await store.queue.drop(group, "why", lease=lease)
    assert store.load_trajectory("cut").stop_reason is StopReason.LOST
    assert store.garbage().trajectories == ["cut"]
    assert store.queue.groups(run, states=[GroupState.DROPPED]) == [group]


async def test_what_repeats_is_kept_once_until_nobody_refers_to_it(store: Store) -> None:
    run, other = await start_run(store), await start_run(store)
    asked = [Message(role="user", content="one and one? " * 20)]
    files = {"log": b"line\n" * 100}
    for owner in (run, run, other):
        first = turn(prompt_messages=asked, prompt_ids=list(range(1000, 1200)))
        one = trajectory(owner, turns=[first], artifacts=Artifacts(files=files))
        await record(store, one)
        assert store.load_trajectory(one.id) == one
    assert sql(store.location, "select count(*) from blobs") == [(3,)]
    for owner, left in ((run, 3), (other, 0)):
        await ended(store, owner)
        await store.remove_garbage(runs=[owner])
        assert sql(store.location, "select count(*) from blobs") == [(left,)]
        assert list(store.verify()) == []
