"""A small database to look at: two runs, the second still running, with all that a page can meet."""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.store import StepRow, Store
from agentrl.types import (
    Artifacts,
    CallStatus,
    EngineCall,
    Grade,
    Message,
    ParsedCall,
    Purpose,
    Sample,
    Sampler,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

EVIL = "</script><img src=x onerror=alert(1)>\"'&{{7*7}}\x1b[2J\u202egnp.exe\u2066\x00"
"""Ends what it stands in, runs in a page or a template, clears a terminal, turns the line around."""
BEGAN = 1_790_000_000.0
SAMPLES = 4


@dataclass(kw_only=True)
class Stage:
    """What is in it, by what it is there for."""

    database: str
    runs: list[str] = field(default_factory=list)
    """The newest last."""
    groups: list[str] = field(default_factory=list)
    learnt: str = ""
    """A trajectory that a step trained on."""
    hostile: str = ""
    """One in which everything that a stranger can write is `EVIL`."""
    branched: str = ""
    running: str = ""


def set_up(folder: Path, num_steps: int = 3, database: str | None = None) -> Stage:
    """Make the database, in `folder` where none is named, with the runs' folders and a tokenizer."""
    stage = Stage(database=database or str(folder / "agentrl.db"))
    _write_tokenizer(folder / "model")
    with Store.open(stage.database) as store:
        asyncio.run(_fill(stage, store, folder, num_steps))
    return stage


async def _fill(stage: Stage, store: Store, folder: Path, num_steps: int) -> None:
    for name in ("baseline", "demo"):
        await _train(stage, store, folder, name, num_steps)
    await store.finish_run(stage.runs[0])
    run = stage.runs[-1]
    stage.hostile = await _play(store, run, hostile(run), Grade(reward=None, unmeasured=EVIL, grader=EVIL, output=EVIL))
    stage.branched = await _play(store, run, branched(run), Grade(reward=0.5, grader="toy"))
    unfinished = rollout(run, task(99), random.Random(5), 1.0)
    stage.running = unfinished.id
    first, unfinished.turns = unfinished.turns[0], []
    unfinished.stop_reason = unfinished.finished_at = None
    await store.recorder.begin(unfinished, 0)
    unfinished.turns = [first]
    await store.recorder.add_turn(unfinished, first)


async def _train(stage: Stage, store: Store, folder: Path, name: str, num_steps: int) -> None:
    place = folder / name
    place.mkdir()
    config = {"command": "train", "env": {"name": "toy", "options": {"level": len(stage.runs)}}}
    config |= {"model": {"path": "tiny"}, "model_folder": str(folder / "model")}
    run = await store.create_run(name, config, seed=7, folder=str(place), packages={"agentrl": "0.1.0"})
    stage.runs.append(run)
    await store.add_version(run, parent=None, step=None, weights_hash="w0", ordinal=0)
    draw = random.Random(len(stage.runs))
    lines: list[dict[str, Any]] = [told("eval", 0, sampling="greedy", success=0.1)]
    for ordinal in range(num_steps):
        lines.append(await _step(stage, store, run, ordinal, draw))
    lines.append(told("eval", num_steps, sampling="greedy", success=0.8))
    (place / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "step", "ordi')


async def _step(stage: Stage, store: Store, run: str, ordinal: int, draw: random.Random) -> dict[str, Any]:
    """Two groups, the second without signal; then a version."""
    rows, position, groups = [], 0, []
    for number in range(2):
        its_task = task(2 * ordinal + number)
        group = await store.queue.plan(
            run, its_task, purpose=Purpose.TRAIN, ordinal=2 * ordinal + number, size=SAMPLES, version=ordinal
        )
        (lease,) = await store.queue.lease("w", 600, groups=[group])
        groups.append(group)
        for sample in range(SAMPLES):
            reward = 1.0 if number else float(draw.random() < 0.3 + 0.5 * ordinal / 12)
            one = rollout(run, its_task, draw, reward, group=group, sample=sample, version=ordinal)
            grade_id = await _record(store, one, lease.generation, grade(reward))
            silent = [(0, one.turns[-1].num_ids, 0.0, "zero_variance")] if number else []
            rows.append(
                StepRow(
                    batch=-1 if number else 0, position=position, trajectory=one.id, end_turn=1, grade_id=grade_id,
                    advantage=0.0 if number else 2 * reward - 1, weights=silent,
                    ratio_mean=math.nan if number else 1.0, ratio_max=math.nan if number else 1.25,
                    clip_share=math.nan if number else 0.125,
                )
            )  # fmt: skip
            position += 1
            stage.learnt = stage.learnt or one.id
        await store.queue.complete(lease)
    step = await store.begin_step(run, ordinal=ordinal, version=ordinal)
    await store.queue.claim(run, step, groups)
    after = await store.add_version(
        run, parent=(run, ordinal), step=step, weights_hash=f"w{ordinal + 1}", ordinal=ordinal + 1
    )
    rewards = {"reward_mean": min(0.9, 0.2 + 0.05 * ordinal), "reward_min": 0.0, "reward_max": 1.0, "num_groups": 2}
    rest = {"loss": 0.1 / (1 + ordinal), "num_zero_variance_groups": 1, "mismatch_logprob_mean": 2e-6, "entropy": 0.4}
    await store.record_step(run, step, rows=rows, metrics=rewards | rest, version_after=after)
    stage.groups += groups
    seconds = {"rollout": 3.0 + 0.2 * ordinal, "train": 1.5, "sync": 0.1}
    return told("step", ordinal, seconds=seconds, tokens_per_s=1000.0)


def told(kind: str, ordinal: int, **values: Any) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    return {"kind": kind, "ordinal": ordinal, "time": BEGAN, **values}


def task(number: int) -> Task:
    asked = [Message(role="system", content="Use the calculator."), Message(role="user", content=f"{number} + 1?")]
    return Task(env="toy", id=f"train-{number}", split="train", messages=asked, data={"answer": number + 1})


def grade(reward: float) -> Grade:
    parts = {"answered": 1.0, "correct": reward}
    return Grade(reward=reward, parts=parts, grader="toy", grader_version="1", output="the last answer was checked")


def rollout(
    run: str, its_task: Task, draw: random.Random, reward: float, *, group: str | None = None, sample: int = 0,
    version: int = 0,
) -> Trajectory:  # fmt: skip
    """Two turns: a call with its result, then an answer."""
    id = f"{draw.getrandbits(64):016x}"
    began = BEGAN + 60 * version + draw.random() * 50
    call = ToolCall(id="call_0", name="calculator", arguments='{"expression": "1 + 1"}')
    parsed = ParsedCall(
        call=call,
        status=CallStatus.OK,
        span=(0, 10),
        arguments={"expression": "1 + 1"},
        result="2",
        seconds=0.02 * (1 + sample),
    )
    first = turn(0, "", began, draw, version, its_task.messages, [parsed])
    answer = [Message(role="tool", content="2", tool_call_id="call_0", name="calculator")]
    last = turn(1, f"Answer: {int(reward)}", began + 2, draw, version, answer, [])
    last.keep = first.num_ids
    ending = StopReason.COMPLETED if draw.random() < 0.8 else StopReason.MAX_TURNS
    return Trajectory(
        id=id, run=run, task=its_task, group=group, sample=sample, env_version="1", template_hash="f" * 64,
        sampling_seed=draw.getrandbits(63), env_seed=3, turns=[first, last], stop_reason=ending,
        started_at=began, finished_at=began + 4,
    )  # fmt: skip


def turn(
    index: int,
    text: str,
    began: float,
    draw: random.Random,
    version: int,
    asked: list[Message],
    calls: list[ParsedCall],
) -> Turn:  # fmt: skip
    """Its ids are bytes; the second half was sampled by the next version."""
    prompt, sampled = (
        list("".join(one.text for one in asked).encode()),
        list((text or "1 + 1 = ?!").encode("utf-8", "replace")),
    )
    half, request = len(sampled) // 2, {"engine": "embedded", "sampling": {"temperature": 1.0}}
    spans = ((0, half, version, "abort"), (half, len(sampled), version + 1, "stop"))
    return Turn(
        index=index,
        parent=index - 1 if index else None,
        keep=0,
        prompt_ids=prompt,
        sampled_ids=sampled,
        logprobs=[-4 * draw.random() for _ in sampled],
        calls=[
            EngineCall(start=start, end=end, version=by, request_id=f"r{index}", finish_reason=reason, **request)
            for start, end, by, reason in spans
        ],
        prompt_messages=list(asked),
        message=Message(role="assistant", content=text, tool_calls=[call.call for call in calls]),
        tool_calls=list(calls),
        started_at=began,
        timings={"render": 0.01, "sample": 1.2, "tools": 0.3, "env": 0.05},
    )


def hostile(run: str, evil: str = EVIL) -> Trajectory:
    """`evil` in every field that a model, a tool, an environment, a grader or a data set fills."""
    one = rollout(run, task(1), random.Random(ascii(evil)), 0.0)
    one.task = Task(env=evil, id=evil, split=evil, messages=[Message(role="user", content=evil)], data={evil: evil})
    one.error, one.env_version, one.stop_reason = evil, evil, StopReason.TOOL_ERROR
    first = one.turns[0]
    first.prompt_messages = [Message(role="user", content=evil, name=evil)]
    call = ToolCall(id=evil, name=evil, arguments=evil)
    first.message = Message(role="assistant", content=evil, reasoning=evil, tool_calls=[call])
    first.tool_calls = [
        ParsedCall(call=call, status=CallStatus.ERROR, span=(0, 2), error=evil, result=evil, seconds=0.1)
    ]
    first.calls[0].engine = first.calls[1].finish_reason = first.calls[1].engine = evil
    first.timings = {evil: 0.5}
    one.turns[1].prompt_messages = [Message(role="tool", content=evil, tool_call_id=evil, name=evil)]
    one.artifacts = Artifacts(data={evil: evil}, files={evil: evil.encode("utf-8", "replace")})
    return one


def branched(run: str) -> Trajectory:
    """A third turn that goes on from the middle of the first, and one of another agent, whose text is long."""
    one = rollout(run, task(2), random.Random(2), 1.0)
    draw = random.Random(3)
    again = turn(2, "x" * 50_000, one.started_at + 3, draw, 1, [Message(role="user", content="once more")], [])
    again.parent, again.keep = 0, 5
    judge = turn(3, "fine", one.started_at + 3.5, draw, 1, [Message(role="user", content="well?")], [])
    judge.agent, judge.trained, judge.sampler = "judge", False, Sampler.TEXT
    judge.parent, judge.keep, judge.prompt_ids, judge.sampled_ids, judge.logprobs, judge.calls = None, 0, [], [], [], []
    one.turns += [again, judge]
    return one


async def _play(store: Store, run: str, one: Trajectory, its_grade: Grade) -> str:
    await _record(store, one, 0, its_grade)
    return one.id


async def _record(store: Store, one: Trajectory, generation: int, its_grade: Grade) -> int | None:
    (grade_id,) = await store.recorder.add_finished([Sample(trajectory=one, grade=its_grade)], generation)
    return grade_id


def _write_tokenizer(folder: Path) -> None:
    """One id for each byte."""
    from tokenizers import Tokenizer, decoders, models

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    vocab = {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
