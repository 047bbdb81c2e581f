"""Kills workers of one queue again and again, and asks the database whether anything went wrong.

    python -m benchmarks.queue_soak [--kills 200] [--database sqlite|postgresql] [--seed 0]

Writers lease groups, play and grade their samples and complete them; consumers claim complete groups for steps of one
run and record the steps. Each is a process that is killed with SIGKILL at a random moment and started again. The
checker reads the database by plain SQL only. At any moment: what was finished stays as it was, no group is trained on
twice, none is torn. In the end the workers are left in peace until the queue is empty: then every planned group was
trained on exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import random
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, text

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import Lease, StepRow, Store
from agentrl.testing.audit_queries import QUERIES
from agentrl.types import Purpose
from benchmarks import report
from tests.postgres import postgres_server
from tests.store.builders import record, start_run, task, trajectory

NUM_WRITERS = NUM_CONSUMERS = 3
LEASE_S = 1.0
GROUP_SIZE = 3
MAX_WAITING = 30
"""Planned groups beyond which no more are planned."""
PARENT_CHECK_S = 0.5
EMPTY_S = 120.0
"""A queue that isn't empty by then is stuck."""

FINISHED = """SELECT t.id, t.stop_reason, t.num_turns, u.turn, u.sampled_ids, u.logprobs
    FROM trajectories t LEFT JOIN turns u ON u.trajectory_id = t.id
    WHERE t.stop_reason IS NOT NULL ORDER BY t.id, u.turn"""
TRAINED = """SELECT g.id, (SELECT count(DISTINCT s.id) FROM step_rows r
        JOIN trajectories t ON t.id = r.trajectory_id
        JOIN steps s ON s.run_id = r.run_id AND s.id = r.step_id AND s.state = 'recorded' AND NOT s.abandoned
        WHERE t.group_id = g.id) FROM groups g"""

fork = multiprocessing.get_context("fork")


# ------------------------------------------------------------------------------------------------- the workers


def _begin_worker() -> None:
    """Draw other numbers than the process that this one was forked from, and end when that one has."""
    random.seed()
    soak = multiprocessing.parent_process()
    assert soak is not None

    def watch() -> None:
        while os.getppid() == soak.pid:
            time.sleep(PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def writer(database: str, run: str, notes: Path, plans: bool) -> None:
    """Play groups for ever."""
    _begin_worker()
    asyncio.run(_write(database, run, plans))


async def _write(database: str, run: str, plans: bool) -> None:
    owner = secrets.token_hex(4)
    with Store.open(database) as store:
        while True:
            leases = await store.queue.lease(owner, LEASE_S, run=run, purpose=Purpose.TRAIN)
            if leases:
                with suppress(LeaseLost):  # we were slow, and somebody else has it now
                    await _play(store, run, leases[0])
            elif plans and len(store.queue.claimable(run)) < MAX_WAITING:
                await asyncio.gather(*(_plan(store, run) for _ in range(5)))
            else:
                await asyncio.sleep(0.05)


async def _plan(store: Store, run: str) -> None:
    own = task(str(random.randrange(50)))
    await store.queue.plan(run, own, purpose=Purpose.TRAIN, ordinal=0, size=GROUP_SIZE, version=0)


async def _play(store: Store, run: str, lease: Lease) -> None:
    """Every sample that an earlier holder didn't finish."""
    group = store.load_group(lease.group)
    done = {sample.trajectory.sample for sample in group.samples if sample.grade is not None}
    rollouts = [
        trajectory(run, group.id, id=secrets.token_hex(8), task=group.task, sample=sample, reissue=lease.reissue)
        for sample in range(group.size)
        if sample not in done
    ]
    for rollout in rollouts:
        await record(store, rollout, lease.generation, num_turns=random.randint(1, 3), reward=random.random())
        await store.queue.heartbeat(lease, LEASE_S)
    await store.queue.complete(lease)


def consumer(database: str, run: str, notes: Path, plans: bool) -> None:
    """Train for ever; `notes` holds the step that is open, so that a restart can give its claims back."""
    _begin_worker()
    asyncio.run(_consume(database, run, notes))


async def _consume(database: str, run: str, notes: Path) -> None:
    with Store.open(database) as store:
        if notes.exists():
            await store.queue.release_claims(run, int(notes.read_text()))
        while True:
            groups = store.queue.claimable(run, limit=6)
            chosen = random.sample(groups, min(len(groups), 2))
            if not chosen:
                await asyncio.sleep(0.05)
                continue
            step = await store.begin_step(run, ordinal=0, version=0)
            _note(notes, step)
            with suppress(StoreError):  # another consumer was faster
                await store.queue.claim(run, step, chosen)
                await store.record_step(run, step, rows=_rows(store, chosen), metrics={}, version_after=None)


def _rows(store: Store, groups: list[str]) -> list[StepRow]:
    samples = [sample for group in groups for sample in store.load_group(group).samples]
    return [
        StepRow(
            batch=0,
            position=place,
            trajectory=sample.trajectory.id,
            end_turn=len(sample.trajectory.turns) - 1,
            grade_id=sample.grade_id,
            advantage=0.0,
        )
        for place, sample in enumerate(samples)
    ]


def _note(notes: Path, step: int) -> None:
    draft = notes.with_suffix(".draft")
    draft.write_text(str(step))
    os.replace(draft, notes)


# ------------------------------------------------------------------------------------------------- the checker


@dataclass
class Checker:
    """Reads the database alone."""

    database: str
    finished: dict[str, str] = field(default_factory=dict)
    """Trajectory → what was stored of it when it was seen finished first."""
    problems: list[str] = field(default_factory=list)

    def check(self, when: str) -> None:
        """What holds at any moment."""
        with self._snapshot() as connection:
            for name, query in QUERIES.items():
                for _, what in connection.execute(text(query)):
                    self.problems.append(f"{when}: {name}: {what}")
            self._compare(when, _digests(connection))

    def trained(self) -> dict[str, int]:
        """In how many steps each planned group was trained on."""
        with self._snapshot() as connection:
            return {group: num for group, num in connection.execute(text(TRAINED))}

    def _compare(self, when: str, now: dict[str, str]) -> None:
        for id, digest in self.finished.items():
            if now.get(id) != digest:
                what = "changed" if id in now else "lost"
                self.problems.append(f"{when}: trajectory {id} was finished and is {what}")
        self.finished |= now

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        is_url = "://" in self.database
        engine = create_engine(self.database if is_url else f"sqlite:///{self.database}")
        with engine.connect() as connection:
            if is_url:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection
        engine.dispose()


def _digests(connection: Connection) -> dict[str, str]:
    hashes: dict[str, Any] = {}
    for id, *content in connection.execute(text(FINISHED)):
        hashes.setdefault(id, hashlib.sha256()).update(repr(content).encode())
    return {id: digest.hexdigest() for id, digest in hashes.items()}


# ---------------------------------------------------------------------------------------------------- the soak


@dataclass
class Soak:
    """The workers and their murderer."""

    database: str
    folder: Path
    random: random.Random
    run: str
    plans: bool = True
    num_kills: int = 0
    num_deaths: int = 0
    """Workers that ended by themselves: none should."""

    def __post_init__(self) -> None:
        roles = [writer] * NUM_WRITERS + [consumer] * NUM_CONSUMERS
        self.roles = dict(enumerate(roles))
        self.workers = {place: self._start(place) for place in self.roles}

    def kill_one(self) -> None:
        """At a random moment, a random worker, which is started again."""
        time.sleep(self.random.uniform(0.05, 0.8))
        place = self.random.choice(list(self.workers))
        self._kill(place)
        self.num_kills += 1
        self.workers[place] = self._start(place)

    def stop(self) -> None:
        for place in self.workers:
            self._kill(place)
        self.workers = {}

    def leave_in_peace(self, checker: Checker) -> dict[str, int]:
        """Plan nothing more and wait until every planned group was trained on."""
        self.stop()
        self.plans = False
        self.workers = {place: self._start(place) for place in self.roles}
        deadline = time.monotonic() + EMPTY_S
        trained = checker.trained()
        while time.monotonic() < deadline and 0 in trained.values():
            time.sleep(0.5)
            trained = checker.trained()
        self.stop()
        return trained

    def _start(self, place: int) -> Any:
        arguments = (self.database, self.run, self.folder / f"step-{place}", self.plans)
        worker = fork.Process(target=self.roles[place], args=arguments, daemon=True)
        worker.start()
        return worker

    def _kill(self, place: int) -> None:
        worker = self.workers[place]
        if worker.exitcode is not None:
            self.num_deaths += 1
            return
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()


async def _begin(database: str) -> str:
    with Store.open(database) as store:
        return await start_run(store)


def soak(database: str, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Run it; what came of it."""
    started = time.monotonic()
    checker = Checker(database)
    its = Soak(database, folder, random.Random(seed), asyncio.run(_begin(database)))
    try:
        while its.num_kills < kills and not checker.problems:
            its.kill_one()
            if its.num_kills % 10 == 0:
                checker.check(f"after {its.num_kills} kills")
        trained = its.leave_in_peace(checker)
    finally:
        its.stop()
    checker.check("in the end")
    for problem in checker.problems[:20]:
        print(problem)
    return {
        "kills": its.num_kills,
        "groups": len(trained),
        "trained_once": list(trained.values()).count(1),
        "trajectories": len(checker.finished),
        "problems": len(checker.problems),
        "deaths": its.num_deaths,
        "seconds": round(time.monotonic() - started),
    }


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.database == "sqlite":
            value = soak(str(folder / "queue.db"), folder, options.kills, options.seed)
        else:
            with postgres_server() as server, server.database() as url:
                value = soak(url, folder, options.kills, options.seed)
    is_good = value["problems"] == value["deaths"] == 0 < value["groups"] == value["trained_once"]
    target = f"{options.kills} kills, 0 problems, every group trained once"
    return report(f"queue_soak_{options.database}", value, target, is_good)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
