"""Small nouns for store tests."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import Any

from sqlalchemy import create_engine

from agentrl.store import Lease, Store
from agentrl.types import (
    Artifacts,
    CallStatus,
    EngineCall,
    Grade,
    Message,
    ParsedCall,
    Purpose,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

_counter = itertools.count()


def task(id: str = "t0", **changes: Any) -> Task:
    fields = {"env": "toy", "id": id, "split": "train", "messages": [Message(role="user", content="1+1?")]}
    return Task(**fields | {"data": {"answer": 2}} | changes)


def tool_call(**changes: Any) -> ParsedCall:
    call = ToolCall(id="c0", name="add", arguments='{"a": 1')
    return ParsedCall(**{"call": call, "status": CallStatus.INVALID_JSON, "span": (0, 2), "error": "cut"} | changes)


def turn(index: int = 0, ids: tuple[int, ...] = (7, 8), **changes: Any) -> Turn:
    request = {"version": 0, "request_id": f"r{index}", "engine": "e0", "finish_reason": "stop"}
    fields = {
        "index": index,
        "parent": index - 1 if index else None,
        "keep": 0,
        "prompt_ids": [1, 2, 3],
        "sampled_ids": list(ids),
        "logprobs": [-0.5] * len(ids),
        "calls": [EngineCall(start=0, end=len(ids), sampling={"temperature": 1.0}, **request)],
        "prompt_messages": [Message(role="user", content="1+1?")],
        "message": Message(role="assistant", content="2", reasoning="hm"),
        "started_at": 12.5,
        "timings": {"sample": 0.25},
    }
    return Turn(**fields | changes)


def trajectory(run: str, group: str | None = None, **changes: Any) -> Trajectory:
    fields = {"id": f"traj{next(_counter):06d}", "run": run, "task": task(), "group": group, "started_at": 10.0}
    return Trajectory(**fields | changes)


async def record(
    store: Store, rollout: Trajectory, generation: int = 0, *, num_turns: int = 1, reward: float | None = 1.0
) -> int | None:
    """Record a whole rollout with `num_turns` turns (or the turns that it has); grade it and return the grade's id."""
    turns = rollout.turns or [turn(index) for index in range(num_turns)]
    ending = rollout.stop_reason or StopReason.COMPLETED
    rollout.turns, rollout.stop_reason = [], None
    await store.recorder.begin(rollout, generation)
    for one in turns:
        rollout.turns.append(one)
        await store.recorder.add_turn(rollout, one)
        await store.recorder.update_turn(rollout, one)
    rollout.stop_reason, rollout.finished_at = ending, 20.0
    await store.recorder.finish(rollout)
    if reward is None:
        return None
    return await store.recorder.add_grade(rollout, Grade(reward=reward, grader="g", grader_version="1"))


async def start_run(store: Store, **config: Any) -> str:
    """A run with version 0."""
    run = await store.create_run("toy run", {"env": {"name": "toy"}} | config, seed=3)
    await store.add_version(run, parent=None, step=None, weights_hash="w0", ordinal=0)
    return run


async def planned(store: Store, run: str, ordinal: int = 0, *, purpose: Purpose = Purpose.TRAIN, size: int = 2) -> str:
    return await store.queue.plan(run, task(), purpose=purpose, ordinal=ordinal, size=size, version=0)


async def leased(store: Store, group: str, owner: str = "w", ttl_s: float = 60.0) -> Lease:
    return (await store.queue.lease(owner, ttl_s, groups=[group]))[0]


async def completed(store: Store, run: str, ordinal: int = 0, *, purpose: Purpose = Purpose.TRAIN) -> str:
    """A complete group of two samples."""
    group = await planned(store, run, ordinal, purpose=purpose)
    lease = await leased(store, group)
    for sample in range(2):
        await record(store, trajectory(run, group, sample=sample), lease.generation)
    await store.queue.complete(lease)
    return group


def same(a: Any, b: Any) -> bool:
    """Equality of nouns up to NaN, types included."""
    return _comparable(asdict(a)) == _comparable(asdict(b))


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value), [_comparable(item) for item in value])
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value)
    if hasattr(value, "model_dump"):
        return _comparable(value.model_dump())
    return value


def artifacts() -> Artifacts:
    return Artifacts(data={"state": [1, None, {"x": "ü"}]}, files={"a.patch": b"\x00\xff", "b": b""})


def sql(target: Any, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements from outside, at a path or URL; the records of the last one."""
    engine = create_engine(str(target) if "://" in str(target) else f"sqlite:///{target}")
    try:
        with engine.begin() as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
            return [tuple(record) for record in result.fetchall()] if result.returns_rows else []
    finally:
        engine.dispose()
