"""Size and speed of a database of a million turns, on SQLite.

Eight turns a trajectory, eight trajectories a group, four runs in two environments; 200 prompt ids, 100 sampled ids
and 1 kB of text a turn, a tool call in all turns but the last; graded, and half of them trained on. Ids are drawn as
words are in a language (Zipf's law over a vocabulary of 151,936), so that they take as much room as real ones.

    python -m benchmarks.store [--turns N] [--folder FOLDER]

Ends with one JSON line per figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

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
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from benchmarks import report

TURNS, SAMPLES, RUNS = 8, 8, 4
PROMPT_IDS, SAMPLED_IDS = 200, 100
ASKED_BYTES, REPLY_BYTES = 680, 344
VOCAB = 151_936
GROUPS_AT_ONCE = 8
RARE = StopReason.TOOL_ERROR
"""One trajectory in a thousand ends so."""


class Maker:
    """Makes groups of trajectories; the same ones for the same seed, but for their ids."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        shares = np.cumsum(1 / (np.arange(VOCAB) + 3.7))
        self._shares = shares / shares[-1]
        self._words = ["".join(self._random.choices("etaoinshrdlucm", k=1 + n % 9)) for n in range(20_000)]
        self._files = [self.text(2000).encode() for _ in range(50)]
        self.now = 1.8e9

    def text(self, num_bytes: int) -> str:
        return " ".join(self._random.choices(self._words, k=num_bytes // 5))[:num_bytes].ljust(num_bytes, ".")

    def ids(self, num: int) -> list[int]:
        drawn: list[int] = np.searchsorted(self._shares, self._numbers.random(num)).tolist()
        return drawn

    def logprobs(self, num: int) -> list[float]:
        drawn: list[float] = (-self._numbers.exponential(0.6, num)).astype(np.float32).tolist()
        return drawn

    def task(self, run_index: int, ordinal: int) -> Task:
        messages = [
            Message(role="system", content="Search, then answer."),
            Message(role="user", content=self.text(660)),
        ]
        env = ("search", "code")[run_index % 2]
        return Task(
            env=env, id=f"{env}-{run_index}-{ordinal}", split="train", messages=messages, data={"answer": ordinal}
        )

    def samples(self, run: str, group: str, task: Task) -> list[Sample]:
        first_ids = self.ids(PROMPT_IDS)
        return [self._sample(run, group, task, sample, first_ids) for sample in range(SAMPLES)]

    def _sample(self, run: str, group: str, task: Task, sample: int, first_ids: list[int]) -> Sample:
        self.now += self._random.random()
        trajectory = Trajectory(
            id=secrets.token_hex(8), run=run, task=task, group=group, sample=sample, env_version="1",
            env_seed=self._random.getrandbits(63), sampling_seed=self._random.getrandbits(63), template_hash="f" * 64,
            stop_reason=self._stop_reason(), started_at=self.now, finished_at=self.now + 9.5,
        )  # fmt: skip
        for index in range(TURNS):
            trajectory.turns.append(self._turn(trajectory, index, first_ids))
        if self._random.random() < 0.25:
            trajectory.artifacts = Artifacts(files={"a.patch": self._random.choice(self._files)})
        reward = round(self._random.random(), 3)
        grade = Grade(reward=reward, parts={"found": 1.0, "length": 0.5}, grader=task.env, grader_version="1")
        return Sample(trajectory=trajectory, grade=grade)

    def _stop_reason(self) -> StopReason:
        place = self._random.random()
        return RARE if place < 0.001 else StopReason.MAX_TURNS if place < 0.2 else StopReason.COMPLETED

    def _turn(self, trajectory: Trajectory, index: int, first_ids: list[int]) -> Turn:
        before = trajectory.turns[-1] if index else None
        calls = [self._call(index)] if index < TURNS - 1 else []
        request = {"request_id": f"{trajectory.id}-{index}", "engine": "embedded", "finish_reason": "stop"}
        sampling = {
            "max_tokens": 512, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": self._random.getrandbits(63),
            "stop_token_ids": [151645],
        }  # fmt: skip
        return Turn(
            index=index,
            parent=index - 1 if index else None,
            keep=index * (PROMPT_IDS + SAMPLED_IDS),
            prompt_ids=self.ids(PROMPT_IDS) if index else first_ids,
            sampled_ids=self.ids(SAMPLED_IDS),
            logprobs=self.logprobs(SAMPLED_IDS),
            calls=[EngineCall(start=0, end=SAMPLED_IDS, version=0, sampling=sampling, **request)],
            prompt_messages=_answer(before.tool_calls[0]) if before else trajectory.task.messages,
            message=Message(role="assistant", content=self.text(REPLY_BYTES), tool_calls=[call.call for call in calls]),
            tool_calls=calls,
            started_at=trajectory.started_at + index,
            timings={name: round(self._random.random(), 6) for name in ("sample", "tools", "env")},
        )

    def _call(self, index: int) -> ParsedCall:
        arguments = {"query": self.text(20)}
        call = ToolCall(id=f"call_{index}_0", name="search", arguments=json.dumps(arguments))
        result, seconds = self.text(ASKED_BYTES), self._random.random()
        return ParsedCall(
            call=call, status=CallStatus.OK, span=(70, 100), arguments=arguments, result=result, seconds=seconds
        )


def _answer(call: ParsedCall) -> list[Message]:
    return [Message(role="tool", content=call.result or "", tool_call_id=call.call.id, name=call.call.name)]


class Clock:
    """Sums wall and processor time over blocks."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall_s += time.perf_counter() - wall
        self.cpu_s += time.process_time() - cpu


async def fill(store: Store, num_turns: int) -> Clock:
    """What a run does with groups, but with whole trajectories at once: plan, lease, add, complete; then a step."""
    maker, clock = Maker(0), Clock()
    runs = [await store.create_run(f"run{index}", {}) for index in range(RUNS)]
    for run in runs:
        await store.add_version(run, parent=None, step=None, weights_hash="", ordinal=0)
    num_batches = max(1, num_turns // (TURNS * SAMPLES * GROUPS_AT_ONCE))
    for batch in range(num_batches):
        index, ordinal = batch * RUNS // num_batches, batch * GROUPS_AT_ONCE
        run, tasks = runs[index], [maker.task(index, ordinal + place) for place in range(GROUPS_AT_ONCE)]
        with clock.running():
            plans = [_plan(store, run, task, ordinal + place) for place, task in enumerate(tasks)]
            groups = await asyncio.gather(*plans)
            leases = await store.queue.lease("bench", 600, groups=groups)
        samples = [maker.samples(run, group, task) for group, task in zip(groups, tasks, strict=True)]
        with clock.running():
            adding = [store.recorder.add_finished(some, leases[0].generation) for some in samples]
            grades = await asyncio.gather(*adding)
            await asyncio.gather(*(store.queue.complete(lease) for lease in leases))
        if batch % 2:
            await _train(store, run, groups, samples, grades)
        if batch % (num_batches // 10 or 1) == 0:
            done = (batch + 1) * TURNS * SAMPLES * GROUPS_AT_ONCE
            print(
                f"{done:9,} turns: {done / clock.wall_s:,.0f}/s, {done / clock.cpu_s:,.0f} per second of CPU",
                flush=True,
            )
    return clock


def _plan(store: Store, run: str, task: Task, ordinal: int) -> Any:
    return store.queue.plan(run, task, purpose=Purpose.TRAIN, ordinal=ordinal, size=SAMPLES, version=0)


async def _train(
    store: Store, run: str, groups: Sequence[str], samples: Sequence[Sequence[Sample]], grades: Sequence[Any]
) -> None:
    step = await store.begin_step(run, ordinal=0, version=0)
    await store.queue.claim(run, step, groups)
    trajectories = [one.trajectory.id for some in samples for one in some]
    flat = zip(trajectories, [id for ids in grades for id in ids], strict=True)
    rows = [
        StepRow(
            batch=0, position=place, trajectory=id, end_turn=TURNS - 1, grade_id=grade_id, advantage=0.123456789,
            weights=[], ratio_mean=1.0000000108372082, ratio_max=1.0000001192092896, clip_share=0.0,
        )
        for place, (id, grade_id) in enumerate(flat)
    ]  # fmt: skip
    await store.record_step(run, step, rows=rows, metrics={"loss": 0.1}, version_after=None)


def size(path: Path) -> dict[str, float]:
    """Bytes an id, without the text; and what takes the bytes."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (num_turns,) = connection.execute("SELECT count(*) FROM turns").fetchone()
        (num_groups,) = connection.execute("SELECT count(*) FROM groups").fetchone()
        parts = Counter(dict(connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")))
    num_first = num_turns // TURNS
    text = num_turns * REPLY_BYTES + (num_turns - num_first + num_groups) * ASKED_BYTES
    total = path.stat().st_size
    for name, num_bytes in parts.most_common(14):
        print(f"  {name:45} {num_bytes / num_turns:8.1f} bytes a turn")
    per_turn = {"total": total / num_turns, "text": text / num_turns}
    return {"bytes_per_id": (total - text) / num_turns / (PROMPT_IDS + SAMPLED_IDS), **per_turn}


def finds(store: Store) -> dict[str, dict[str, Any]]:
    """What is looked for; the last ones match nothing, or hardly anything."""
    run = store.runs()[-1].id
    step = {"step": (run, store.steps(run)[0].id)}
    of_run, of_env = {"run": run}, {"env": "search"}
    high, rare = {"min_reward": 0.999}, {"stop_reason": RARE}
    return {
        "all": {}, "run": of_run, "env": of_env, "reward": {"min_reward": 0.2, "max_reward": 0.3}, "step": step,
        "stop_reason": {"stop_reason": StopReason.MAX_TURNS}, "rare_reward": high, "rare_stop_reason": rare,
        "together": of_run | of_env | high | {"stop_reason": StopReason.COMPLETED}, "step_reward": step | high,
        "run_rare": of_run | rare, "no_such_env": {"env": "none"}, "no_such_reward": of_run | {"min_reward": 2.0},
    }  # fmt: skip


def measure(act: Callable[[], object], times: int) -> tuple[float, float]:
    """(wall, CPU): medians in seconds."""
    walls, cpus = [], []
    for _ in range(times):
        clock = Clock()
        with clock.running():
            act()
        walls.append(clock.wall_s)
        cpus.append(clock.cpu_s)
    return statistics.median(walls), statistics.median(cpus)


def find_all(store: Store) -> tuple[float, float]:
    """The slowest of the finds, first page and second page: (wall, CPU) in ms."""
    worst = (0.0, 0.0)
    for name, which in finds(store).items():
        page = store.find_trajectories(limit=20, **which)
        after = (page[-1].started_at, page[-1].id) if page else None
        for start in (None, after):
            wall, cpu = measure(lambda: store.find_trajectories(limit=20, after=start, **which), 5)  # noqa: B023
            print(f"  {name:20} {'next' if start else 'first'} {wall * 1000:8.2f} ms, {cpu * 1000:8.2f} of CPU")
            worst = max(worst, (wall * 1000, cpu * 1000))
    return worst


def search(store: Store) -> tuple[float, float]:
    """A text that nobody wrote, in the whole of a run."""
    run = store.runs()[-1].id
    return measure(lambda: store.find_trajectories(run=run, text="Nobody wrote this", limit=20), 3)


def load(store: Store) -> tuple[float, float]:
    """A trajectory with its eight turns and its grade, of 200 that are spread over the database: (wall, CPU) in ms."""
    ids = [one.id for one in store.find_trajectories()]
    rest = iter(random.Random(1).sample(ids, min(200, len(ids))))
    wall, cpu = measure(lambda: store.load_sample(next(rest)), min(200, len(ids)))
    return wall * 1000, cpu * 1000


def figures(path: Path, num_turns: int) -> bool:
    with Store.open(path) as store:
        clock = asyncio.run(fill(store, num_turns))
    rounded = {name: round(value, 2) for name, value in size(path).items()}
    with Store.open(path) as store:
        found, sought, loaded = find_all(store), search(store), load(store)
    rate = {"turns_per_s": round(num_turns / clock.wall_s), "per_cpu_s": round(num_turns / clock.cpu_s)}
    oks = [
        report("store_insert", rate | {"load": round(os.getloadavg()[0], 1)}, ">= 5000", rate["turns_per_s"] >= 5000),
        report("store_size", rounded, "bytes_per_id <= 6", rounded["bytes_per_id"] <= 6),
        _timed("store_find_ms", found, 50),
        _timed("store_text_search_s", sought, 2),
        _timed("store_trajectory_ms", loaded, 5),
    ]
    return all(oks)


def _timed(name: str, seen: tuple[float, float], limit: float) -> bool:
    value = {"wall": round(seen[0], 3), "cpu": round(seen[1], 3)}
    return report(name, value, f"wall <= {limit}", seen[0] <= limit)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--folder", help="keep the database there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return figures(Path(options.folder or folder) / "store.db", options.turns)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
