"""What is asked of a run that is looked at, and a store that is opened to be read only."""

from __future__ import annotations

import pytest

from agentrl.errors import NotStored, StoreError
from agentrl.store import StepRow, Store
from agentrl.types import CallStatus, Message, StopReason
from tests.store.builders import completed, leased, planned, record, sql, start_run, tool_call, trajectory, turn


async def trained(store: Store, *, version: int = 0) -> tuple[str, str]:
    """(run, a trajectory that its one step trained on), by a group that was planned with version 0."""
    run = await start_run(store)
    group = await completed(store, run)
    ids = [one.id for one in store.find_trajectories(group=group)]
    for ordinal in range(1, version + 1):
        await store.add_version(run, parent=(run, ordinal - 1), step=None, weights_hash="w", ordinal=ordinal)
    step = await store.begin_step(run, ordinal=0, version=version)
    await store.queue.claim(run, step, [group])
    rows = [
        StepRow(batch=0, position=place, trajectory=id, end_turn=0, grade_id=None, advantage=1.0)
        for place, id in enumerate(ids)
    ]
    await store.record_step(run, step, rows=rows, metrics={"reward_mean": 0.5}, version_after=None)
    return run, ids[0]


async def test_endings_are_counted_by_spans_of_time(store: Store) -> None:
    run, other = await start_run(store), await start_run(store)
    for started_at, reward in ((0.0, 1.0), (1.0, 0.0), (9.9, None), (10.0, 0.5)):
        ending = StopReason.TOOL_ERROR if reward is None else StopReason.COMPLETED
        await record(store, trajectory(run, started_at=started_at, stop_reason=ending), reward=reward)
    await store.recorder.begin(trajectory(other, started_at=500.0), 0)
    found = [(round(one.start), one.stop_reason, one.num, one.reward_mean) for one in store.endings(run, 2)]
    assert sorted(found, key=repr) == sorted(
        [(0, "completed", 2, 0.5), (5, "completed", 1, 0.5), (5, "tool_error", 1, None)], key=repr
    )
    whole = {(one.stop_reason, one.num) for one in store.endings(None)}
    assert whole == {("completed", 3), ("tool_error", 1), (None, 1)}
    assert store.endings("nobody", 5) == []


async def test_slow_tools_calls_and_episodes_are_told_of_the_newest(store: Store) -> None:
    run, other = await start_run(store), await start_run(store)
    for number, seconds in enumerate((9.0, 1.0, 3.0)):
        calls = [tool_call(seconds=seconds, status=CallStatus.OK), tool_call(seconds=0.5, status=CallStatus.TIMEOUT)]
        one = trajectory(run, id=f"t{number}", started_at=float(number), finished_at=number + seconds)
        one.turns = [turn(tool_calls=calls)]
        await record(store, one)
    await store.recorder.begin(trajectory(other, started_at=9.0), 0)
    (tool,) = store.slow_tools(run, 2, 5)
    assert (tool.num, tool.num_failed, tool.seconds_mean, tool.seconds_longest) == (4, 2, 1.25, 3.0)
    assert store.slow_tools(None, 4, 5)[0].num == 6 and store.slow_tools(other, 9, 5) == []
    found = [(one.trajectory, one.turn, one.status, one.seconds) for one in store.slow_calls(run, 9, 2)]
    assert found == [("t0", 0, "ok", 9.0), ("t2", 0, "ok", 3.0)]
    assert [one.id for one in store.longest(run, 2, 9)] == ["t1", "t2"] and store.longest(other, 9, 9) == []


async def test_replies_are_the_last_turns_or_those_from_one_on(store: Store) -> None:
    run = await start_run(store)
    for id, num in (("long", 5), ("short", 1)):
        one = trajectory(run, id=id)
        one.turns = [
            turn(n, message=Message(role="assistant", content=f"{id} {n}"), tool_calls=[tool_call()] * (n == 3))
            for n in range(num)
        ]
        await record(store, one)
    last = store.replies(["long", "short"], None, 2)
    assert [(one.turn, one.text, len(one.calls)) for one in last["long"]] == [(3, "long 3", 1), (4, "long 4", 0)]
    assert [one.text for one in last["short"]] == ["short 0"]
    later = store.replies(["long", "short"], 1, 2)
    assert [one.text for one in later["long"]] == ["long 1", "long 2"] and later["short"] == []
    assert store.replies([], None, 2) == {}


async def test_facts_of_steps_tell_lengths_and_age(store: Store) -> None:
    run, _ = await trained(store, version=2)
    facts = store.step_facts(run)[0]
    assert (facts.num_trajectories, facts.turns_mean, facts.sampled_mean, facts.staleness) == (2, 1.0, 2.0, 2)
    assert store.last_steps()[run] == (1, {"reward_mean": 0.5})
    assert store.step_facts("nobody") == {}


async def test_a_mark_changes_with_what_it_is_of_and_not_else(store: Store) -> None:
    run, id = await trained(store)
    marks = {"runs": store.mark("runs"), "run": store.mark("run", run), "trajectory": store.mark("trajectory", id)}
    assert marks["run"] == store.mark("run", run) and marks["trajectory"] == store.mark("trajectory", id)
    group = await planned(store, run, 1)
    began = trajectory(run, group)
    await store.recorder.begin(began, (await leased(store, group)).generation)
    assert store.mark("run", run) != marks["run"] and store.mark("trajectory", id) == marks["trajectory"]
    await start_run(store)
    assert store.mark("runs") != marks["runs"]
    for kind in ("run", "trajectory"):
        with pytest.raises(NotStored, match="nobody"):
            store.mark(kind, "nobody")  # type: ignore[arg-type]


async def test_a_store_that_is_read_only_reads_and_writes_nothing(store: Store, target: str) -> None:
    run, id = await trained(store)
    with Store.open(target, read_only=True) as seen:
        assert [one.id for one in seen.runs()] == [run] and seen.load_sample(id).reward == 1.0
        with pytest.raises(StoreError, match="opened to be read only"):
            await seen.create_run("no", {})
        late = await start_run(store)
        assert late in {one.id for one in seen.runs()}


async def test_what_can_only_be_read_is_never_made_or_upgraded(empty: str) -> None:
    if "://" not in empty:
        with pytest.raises(StoreError, match="unable to open"):
            Store.open(empty, read_only=True)
        sql(empty, "CREATE TABLE t (x INTEGER)", "DROP TABLE t")
    with pytest.raises(StoreError, match="has no tables yet"):
        Store.open(empty, read_only=True)
    Store.open(empty).close()
    sql(empty, "UPDATE alembic_version SET version_num = '0001'")
    with pytest.raises(StoreError, match=r"older than schema .*agentrl db migrate"):
        Store.open(empty, read_only=True)
    sql(empty, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="newer than schema"):
        Store.open(empty, read_only=True)
