"""Builders of tiny trajectories: ids are small ints, one engine call per turn."""

from __future__ import annotations

import math

from agentrl.types import (
    EngineCall,
    Grade,
    Group,
    Message,
    Purpose,
    Sample,
    Sampler,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

TASK = Task(env="toy", id="0", split="train", messages=[Message(role="user", content="?")])


def make_call(start: int, end: int, version: int = 0, temperature: float = 1.0) -> EngineCall:
    return EngineCall(
        start=start,
        end=end,
        version=version,
        request_id="r",
        engine="e",
        finish_reason="stop",
        sampling={"temperature": temperature},
    )


def make_turn(
    index: int,
    parent: int | None,
    keep: int,
    prompt: list[int],
    sampled: list[int],
    *,
    logprobs: list[float] | None = None,
    calls: list[EngineCall] | None = None,
    sampler: Sampler = Sampler.ENGINE,
    trained: bool = True,
    agent: str = "main",
) -> Turn:
    engine = sampler is Sampler.ENGINE
    default = [-0.5] * len(sampled) if engine else [math.nan] * len(sampled)
    return Turn(
        index=index,
        parent=parent,
        keep=keep,
        prompt_ids=prompt,
        sampled_ids=sampled,
        logprobs=default if logprobs is None else logprobs,
        calls=calls if calls is not None else [make_call(0, len(sampled))] if engine and sampled else [],
        prompt_messages=[],
        message=Message(role="assistant"),
        sampler=sampler,
        trained=trained,
        agent=agent,
    )


def make_sample(
    turns: list[Turn],
    *,
    id: str = "t",
    reward: float | None = 1.0,
    turn_rewards: list[float] | None = None,
    stop_reason: StopReason | None = StopReason.COMPLETED,
    group: str = "g",
    grade_id: int | None = 7,
) -> Sample:
    trajectory = Trajectory(id=id, run="r", task=TASK, group=group, turns=turns, stop_reason=stop_reason)
    grade = Grade(reward=reward, turn_rewards=turn_rewards, unmeasured="the grader died" if reward is None else None)
    return Sample(trajectory=trajectory, grade=grade, grade_id=grade_id)


def make_group(samples: list[Sample], id: str = "g") -> Group:
    return Group(id=id, run="r", task=TASK, purpose=Purpose.TRAIN, ordinal=0, size=len(samples), samples=samples)


def one_turn(id: str, reward: float | None, *, num_sampled: int = 2, group: str = "g") -> Sample:
    """A trajectory of two prompt ids and `num_sampled` sampled ids."""
    return make_sample(
        [make_turn(0, None, 0, [1, 2], list(range(10, 10 + num_sampled)))], id=id, reward=reward, group=group
    )


def branches(id: str, reward: float, num_branches: int, num_sampled: int = 2) -> Sample:
    """Turns that each start over after one shared id, so that every turn is a Row of its own."""
    turns = [
        make_turn(i, None if i == 0 else 0, 0 if i == 0 else 1, [1, 2] if i == 0 else [30 + i], [10 + i] * num_sampled)
        for i in range(num_branches)
    ]
    return make_sample(turns, id=id, reward=reward)
