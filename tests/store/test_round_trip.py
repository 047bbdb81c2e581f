"""What is recorded is what is loaded."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import StoreError
from agentrl.store import Store
from agentrl.store.codec import decode_ids, decode_logprobs, encode_ids, encode_logprobs
from agentrl.store.sealing import seal, unseal
from agentrl.types import (
    Artifacts,
    CallStatus,
    EngineCall,
    Grade,
    Message,
    Purpose,
    Sampler,
    StopReason,
    TextPart,
    ToolCall,
    Trajectory,
)
from tests.store.builders import artifacts, planned, record, same, sql, start_run, task, tool_call, trajectory, turn

any_text = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["\x00", "a\ud800", "\ud83d\ude00", "\\u0000", "ü\udcff"]
)
any_number = st.integers() | st.floats()
any_json = st.recursive(
    st.none() | st.booleans() | any_number | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
json_object = st.dictionaries(any_text, any_json, max_size=3)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_round_trip(ids: list[int]) -> None:
    assert decode_ids(encode_ids(ids)) == ids
    assert sum(byte < 128 for byte in encode_ids(ids)) == len(ids)


@pytest.mark.parametrize(("largest", "width"), [(127, 1), (16_383, 2), (2_097_151, 3), (2**31 - 1, 5)])
def test_an_id_takes_as_few_bytes_as_it_can(largest: int, width: int) -> None:
    assert len(encode_ids([largest])) == width and decode_ids(encode_ids([largest])) == [largest]
    assert len(encode_ids([(largest + 1) % 2**31])) in (1, width + 1)


@pytest.mark.parametrize("blob", [b"\x80", b"\x01\xff", b"\xff\xff\xff\xff\x7f", b"\x80" * 9 + b"\x01"])
def test_bytes_that_are_no_ids_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="are no ids"):
        decode_ids(blob)


@pytest.mark.parametrize("ids", [[-1], [2**31]])
def test_an_id_out_of_range_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not within 0 to 2147483647"):
        encode_ids(ids)


@given(st.lists(st.floats(width=32)))
def test_float32_logprobs_round_trip_bit_by_bit(logprobs: list[float]) -> None:
    assert [repr(p) for p in decode_logprobs(encode_logprobs(logprobs))] == [repr(p) for p in logprobs]


def test_blobs_are_little_endian() -> None:
    assert encode_ids([1, 258]) == b"\x01\x82\x02"
    assert encode_logprobs([1.0]) == b"\x00\x00\x80\x3f"


@given(any_text, json_object, st.floats())
def test_sealing_keeps_everything_and_leaves_clean_columns(text: str, value: dict[str, Any], number: float) -> None:
    values = {"text": text, "json": value, "number": number, "blob": b"\x00"}
    sealed = seal(values)
    stored = sealed | {"json": json.loads(sealed["json"])}
    assert repr(unseal(stored)) == repr(values)
    (sealed["text"] + sealed["json"]).encode("utf-8")
    assert "\x00" not in sealed["text"]
    assert "\x00" not in "".join(strings(stored["json"]))
    assert sealed["number"] is None or math.isfinite(sealed["number"])


def strings(value: Any) -> list[str]:
    """All text in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in items for text in strings(item)]


def test_sealing_is_free_of_raw_bytes_where_nothing_changed() -> None:
    assert seal({"text": "grüße 😀", "json": {"a": [1.5, None]}})["raw"] is None


@st.composite
def whole_trajectories(draw: Any) -> Trajectory:
    """A trajectory of two turns whose texts, JSON and tokens are arbitrary."""
    turns = [turn(i, tuple(draw(token_ids)), prompt_ids=draw(token_ids), trained=draw(st.booleans())) for i in range(2)]
    for one in turns:
        one.logprobs = draw(st.lists(st.floats(width=32), min_size=len(one.logprobs), max_size=len(one.logprobs)))
        one.reward = draw(st.floats())
        one.agent = draw(any_text)
        one.message = Message(role="assistant", content=draw(any_text), reasoning=draw(st.none() | any_text))
        one.prompt_messages = [Message(role="tool", content=[TextPart(text=draw(any_text))], name=draw(any_text))]
        call = ToolCall(id=draw(any_text), name=draw(any_text), arguments=draw(any_text))
        one.tool_calls = [tool_call(call=call, result=draw(any_text), arguments=draw(st.none() | json_object))]
        one.calls[0].sampling = draw(json_object)
        one.timings = {draw(any_text): draw(st.floats())}
    files = draw(st.dictionaries(any_text, st.binary(max_size=9), max_size=2))
    own = task(draw(any_text), messages=[Message(role="user", content=draw(any_text))], data=draw(json_object))
    kept = Artifacts(data=draw(json_object), files=files)
    return trajectory("", task=own, turns=turns, artifacts=kept, error=draw(any_text), template_hash=draw(any_text))


@st.composite
def grades(draw: Any) -> Grade:
    """A grade whose texts are arbitrary."""
    reward = draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
    parts = draw(st.dictionaries(any_text, st.floats(), max_size=3))
    why = draw(any_text) or "no box" if reward is None else None
    return Grade(reward=reward, unmeasured=why, parts=parts, grader=draw(any_text), grader_version=draw(any_text))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(whole_trajectories(), grades())
def test_j03_any_text_survives_in_trajectories_tool_calls_artifacts_grades_and_errors(
    store: Store, rollout: Trajectory, grade: Grade
) -> None:
    async def write() -> None:
        rollout.run = store.runs()[0].id if store.runs() else await start_run(store)
        await record(store, rollout, reward=None)
        await store.recorder.add_grade(rollout, grade)

    asyncio.run(write())
    sample = store.load_sample(rollout.id)
    assert same(sample.trajectory, rollout)
    assert sample.grade is not None and repr(sample.grade) == repr(grade)


async def test_j03_a_nul_in_text_and_in_a_key_is_reversible_and_ids_are_untouched(store: Store) -> None:
    run = await start_run(store)
    call = tool_call(result="before\x00after", arguments={"k\x00": ["\udcff", {"\ud800": 1}]}, status=CallStatus.OK)
    kept = Artifacts(data={"k\x00": "v\x00"}, files={"a\x00": b"\x00\xff"})
    rollout = trajectory(run, turns=[turn(tool_calls=[call])], artifacts=kept, error="x\x00")
    await record(store, rollout)
    assert store.load_trajectory(rollout.id) == rollout
    for name in ("turns", "tool_calls"):
        assert sql(store.location, f"select count(*) from {name}") == [(1,)]
    assert sql(store.location, "select result from tool_calls") == [("before\ufffdafter",)]
    assert sql(store.location, "select sampled_ids from turns") == [(encode_ids([7, 8]),)]


async def test_j03_a_reason_for_dropping_a_group_is_any_text(store: Store) -> None:
    run = await start_run(store)
    group = await planned(store, run)
    await store.queue.drop(group, "died of \x00\udcff")
    assert sql(store.location, "select dropped_reason from groups") == [("died of \ufffd\ufffd",)]


async def test_j03_fifty_megabytes_survive(store: Store) -> None:
    text = "0123456789abcdé" * (50 * 2**20 // 16) + "\x00\udcff"
    assert len(text.encode("utf-8", "surrogatepass")) > 49 * 2**20
    run = await start_run(store)
    files = {"log": text.encode("utf-8", "surrogatepass")}
    rollout = trajectory(run, turns=[turn(tool_calls=[tool_call(result=text)])], artifacts=Artifacts(files=files))
    await record(store, rollout)
    assert store.load_trajectory(rollout.id) == rollout


async def test_clean_trajectory_equals_what_was_recorded(store: Store) -> None:
    run = await start_run(store)
    origin = trajectory(run)
    await record(store, origin)
    request = {"request_id": "r", "engine": "e", "finish_reason": "abort", "sampling": {"top_k": 5}}
    cut = [EngineCall(start=0, end=1, version=0, **request), EngineCall(start=1, end=3, version=4, **request)]
    human = turn(2, (9,), sampler=Sampler.HUMAN, calls=[], logprobs=[-1.0], agent="user", trained=False, reward=0.5)
    tools = [tool_call(), tool_call(status=CallStatus.OK, arguments={"a": [1]}, result="é", error=None, seconds=0.1)]
    seeds = {"env_seed": 2**63 - 1, "sampling_seed": 5}
    place = {"sample": 3, "attempt": 1, "reissue": 2, "forked_from": (origin.id, 0), "artifacts": artifacts()}
    rollout = trajectory(run, **seeds, **place, env_version="2", stop_reason=StopReason.MAX_TURNS)
    rollout.turns = [turn(0, (4, 5, 6), calls=cut), turn(1, tool_calls=tools, parent=0, keep=6), human]
    await record(store, rollout)
    loaded = store.load_trajectory(rollout.id)
    assert loaded == rollout
    assert loaded.turns[0].versions == [0, 4, 4]


async def test_running_trajectory_shows_turns_that_finished(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    await store.recorder.begin(rollout, 0)
    first = turn(0, tool_calls=[tool_call(), tool_call()])
    rollout.turns.append(first)
    await store.recorder.add_turn(rollout, first)
    assert store.load_trajectory(rollout.id) == rollout
    first.reward, first.timings = 0.25, {"tools": 0.5}
    first.tool_calls = [tool_call(result="done\x00"), tool_call(status=CallStatus.TIMEOUT, error="\ud800", seconds=9.0)]
    await store.recorder.update_turn(rollout, first)
    assert store.load_trajectory(rollout.id) == rollout


async def test_grades_are_appended_and_the_latest_counts(store: Store) -> None:
    run = await start_run(store)
    group = await store.queue.plan(run, task(), purpose=Purpose.TRAIN, ordinal=0, size=1, version=0)
    lease = (await store.queue.lease("w", 60.0))[0]
    rollout = trajectory(run, group)
    first = await record(store, rollout, lease.generation)
    second = Grade(reward=0.5, parts={"x": 0.1}, turn_rewards=[0.5], grader="g", grader_version="2")
    second_id = await store.recorder.add_grade(rollout, second)
    sample = store.load_group(group).samples[0]
    assert (sample.grade, sample.grade_id, sample.trajectory) == (second, second_id, rollout)
    assert first is not None and second_id > first


async def test_reward_that_is_no_number_is_unmeasured(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    await record(store, rollout, reward=math.nan)
    [summary] = store.find_trajectories()
    assert summary.reward is None
    assert summary.unmeasured == "the grader returned nan"


async def test_one_task_key_in_two_splits_is_two_tasks(store: Store) -> None:
    run = await start_run(store)
    tasks = [task("a"), task("a", split="test"), task("b"), task("a")]
    rollouts = [trajectory(run, task=one) for one in tasks]
    for rollout in rollouts:
        await record(store, rollout)
    assert len({one.key for one in tasks}) == 1
    assert [store.load_trajectory(rollout.id).task for rollout in rollouts] == tasks


async def test_text_is_readable_with_plain_sql(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run, turns=[turn(message=Message(role="assistant", content="grüße\x00"))])
    await record(store, rollout)
    assert sql(store.location, "select text from turns") == [("grüße\ufffd",)]
    assert sql(store.location, "select sampled_ids from turns") == [(encode_ids([7, 8]),)]
    [[asked]] = sql(store.location, "select cast(prompt_messages as text) from turns")
    assert "1+1?" in asked


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (turn(logprobs=[-1.0]), "2 sampled ids, but 1 logprobs"),
        (turn(calls=[]), "engine calls cover 0"),
        (turn(sampler=Sampler.SCRIPTED), "has engine calls"),
        (turn(index=1, parent=0), "turn 1 came where 0 was due"),
        (turn(ids=(2**31, 1)), "can't be stored"),
        (turn(timings={"sample": object()}), "can't be stored"),
        (turn(parent=5), "(?i)foreign key"),
    ],
)
async def test_turn_that_does_not_fit_is_refused_and_leaves_no_trace(store: Store, broken: Any, message: str) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    await store.recorder.begin(rollout, 0)
    with pytest.raises(StoreError, match=message):
        await store.recorder.add_turn(rollout, broken)
    assert store.load_trajectory(rollout.id).turns == []
    rollout.turns.append(turn())
    await store.recorder.add_turn(rollout, rollout.turns[0])
    assert store.load_trajectory(rollout.id) == rollout
