"""Trajectories are found by what they are and by what was said in them."""

from __future__ import annotations

from pathlib import Path

from agentrl.store import Selection, StepRow, Store
from agentrl.types import Grade, Message, Purpose, StopReason, TextPart, Trajectory
from tests.store.builders import leased, planned, record, sql, start_run, task, tool_call, trajectory, turn


def ids(store: Store, **which: object) -> list[str]:
    return [one.id for one in store.find_trajectories(**which)]  # type: ignore[arg-type]


async def played(store: Store, run: str, id: str, started_at: float, **changes: object) -> Trajectory:
    reward = changes.pop("reward", 0.5)
    one = trajectory(run, id=id, started_at=started_at, **changes)
    await record(store, one, reward=reward)  # type: ignore[arg-type]
    return one


async def test_each_condition_and_all_together(store: Store) -> None:
    run, other = await start_run(store), await start_run(store)
    await played(store, run, "a", 1.0, reward=0.0)
    await played(store, run, "b", 2.0, reward=1.0, stop_reason=StopReason.MAX_TURNS)
    await played(store, other, "c", 3.0, reward=1.0, task=task(env="code"))
    await played(store, other, "d", 4.0, reward=None)
    await store.recorder.begin(trajectory(run, id="e", started_at=5.0), 0)
    found: list[tuple[Selection, list[str]]] = [
        ({}, ["e", "d", "c", "b", "a"]),
        ({"run": run}, ["e", "b", "a"]),
        ({"env": "code"}, ["c"]),
        ({"stop_reason": StopReason.MAX_TURNS}, ["b"]),
        ({"stop_reason": "running"}, ["e"]),
        ({"min_reward": 0.5}, ["c", "b"]),
        ({"max_reward": 0.5}, ["a"]),
        ({"min_reward": 0.5, "run": run, "stop_reason": StopReason.MAX_TURNS, "env": "toy"}, ["b"]),
        ({"min_reward": 0.5, "run": run, "stop_reason": StopReason.COMPLETED}, []),
        ({"run": None, "env": None, "min_reward": None}, ["e", "d", "c", "b", "a"]),
    ]
    for which, expected in found:
        assert ids(store, **which) == expected, which


async def test_the_latest_grade_counts(store: Store) -> None:
    run = await start_run(store)
    one = await played(store, run, "a", 1.0, reward=0.0)
    await store.recorder.add_grade(one, Grade(reward=1.0))
    assert ids(store, min_reward=1.0) == ["a"] and ids(store, max_reward=0.5) == []
    await store.recorder.add_grade(one, Grade(reward=None, unmeasured="no box"))
    assert ids(store, min_reward=-1.0) == [] and list(store.verify()) == []


async def test_by_the_step_that_trained_and_by_purpose(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run, purpose=Purpose.TRAIN)
    lease = await leased(store, group)
    for sample in range(2):
        one = trajectory(run, group, id=f"s{sample}", sample=sample, started_at=float(sample))
        await record(store, one, lease.generation)
    await store.queue.complete(lease)
    await played(store, run, "z", 9.0)
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.queue.claim(run, step, [group])
    rows = [
        StepRow(batch=0, position=place, trajectory=id, end_turn=0, grade_id=None, advantage=0.0)
        for place, id in enumerate(["s0", "s1", "s0"])
    ]
    await store.record_step(run, step, rows=rows, metrics={}, version_after=None)
    assert ids(store, step=(run, step)) == ["s1", "s0"] == ids(store, purpose=Purpose.TRAIN)
    assert ids(store, step=(run, step + 1)) == []


async def test_pages_hold_each_once_also_where_times_are_equal(store: Store) -> None:
    run = await start_run(store)
    for number in range(7):
        await played(store, run, f"t{number}", float(number // 3))
    seen: list[str] = []
    after = None
    while page := store.find_trajectories(run=run, limit=2, after=after):
        after = (page[-1].started_at, page[-1].id)
        seen += [one.id for one in page]
        if len(seen) == 4:  # what comes meanwhile is newer, and moves no page
            await played(store, run, "new", 99.0)
    assert seen == ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]


async def test_text_is_found_wherever_it_was_said(store: Store) -> None:
    run, other = await start_run(store), await start_run(store)
    long = "first prompts are shared: " + "x" * 200 + ' "Köln"\nand more'
    result = "The RESULT of a tool, " + "y" * 200
    answer = Message(role="tool", content=result, tool_call_id="c0", name="add")
    reply = Message(role="assistant", content="I said Grüße\x00!", reasoning="hm, let me THINK")
    first = turn(0, prompt_messages=[Message(role="user", content=long)], tool_calls=[tool_call(result=result)])
    parts = Message(role="user", content=[TextPart(text="in two"), TextPart(text="parts")])
    second = turn(1, parent=0, keep=5, prompt_messages=[answer, parts], message=reply)
    for owner, id in ((run, "said"), (other, "elsewhere")):
        await played(store, owner, id, 1.0, turns=[first, second])
    await played(store, run, "silent", 2.0, turns=[turn(prompt_messages=[], message=Message(role="assistant"))])
    assert store.load_trajectory("said").turns == [first, second]
    for text in ("ARE shared", '"köln"\nAND', "result of A tool", "grüSSE" if "://" not in store.location else "GRÜße",
                 "Grüße\x00", "let me think", "in TWO", '{"a": 1'):  # fmt: skip
        assert ids(store, text=text, run=run) == ["said"], text
    for text in ("role", "assistant", "tool_call_id", "content", "nobody said this", "%", "x_x"):
        assert ids(store, text=text, run=run) == [], text
    assert ids(store, text="parts") == ["said", "elsewhere"]


async def test_a_damaged_record_does_not_hide_the_others(tmp_path: Path) -> None:
    """PostgreSQL checks what is JSON itself."""
    with Store.open(tmp_path / "store.db") as store:
        run = await start_run(store)
        for id in ("good", "prompt", "blob", "reply"):
            asked = f"of {id} " + "x" * (200 if id == "blob" else 1)
            reply = Message(role="assistant", content="", reasoning="a needle")
            played_turn = turn(prompt_messages=[Message(role="user", content=asked)], message=reply)
            await played(store, run, id, 1.0, turns=[played_turn])
        sql(store.location, *(f"update {change}" for change in DAMAGE))
        assert ids(store, text="a NEEDLE") == ["prompt", "good", "blob"]
        assert ids(store, text="broken") == ["prompt", "blob"], "whoever reads it is told"


DAMAGE = (
    "turns set prompt_messages = '[1, \"broken' where trajectory_id = 'prompt'",
    "turns set message = '{broken', text = cast(x'ff6e6f' as text) where trajectory_id = 'reply'",
    "blobs set content = x'ff62726f6b656e' where cast(content as text) like '%of blob%'",
)


async def test_a_tools_result_is_kept_once(store: Store) -> None:
    run = await start_run(store)
    result = "z" * 5000
    answer = Message(role="tool", content=result, tool_call_id="c0", name="add")
    other = Message(role="tool", content="not what it gave", tool_call_id="c0", name="add")
    turns = [
        turn(0, tool_calls=[tool_call(result=result)]),
        turn(1, parent=0, keep=5, prompt_messages=[answer]),
        turn(2, parent=0, keep=5, prompt_messages=[other]),
    ]
    one = await played(store, run, "one", 1.0, turns=turns)
    assert store.load_trajectory("one") == one
    [[bytes_of_prompts]] = sql(store.location, "select sum(length(cast(prompt_messages as text))) from turns")
    assert bytes_of_prompts < 300
    sql(store.location, "update tool_calls set call_id = 'gone'")
    [damage] = store.verify()
    assert str(damage) == "trajectories: id=one: its prompt holds the result of call 'c0', which is gone"
