"""Many writers, one thread: durable before it returns, and no write takes another along."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, insert, text

from agentrl.errors import StoreError
from agentrl.store import Store
from agentrl.store.database import Database
from agentrl.store.schema import migrate
from agentrl.store.tables import Runs, table
from agentrl.store.writer import Writer
from agentrl.testing.audit import audit
from tests.store.builders import record, start_run, trajectory, turn

PROCESS = """
import asyncio, sys
from agentrl.store import Store
from tests.store.builders import record, start_run, trajectory

async def main(path, name, count):
    with Store.open(path) as store:
        run = await start_run(store)
        rollouts = [trajectory(run, id=f"{name}-{i}") for i in range(count)]
        await asyncio.gather(*(record(store, rollout, num_turns=2) for rollout in rollouts))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
FORKS = (
    PROCESS.rpartition("asyncio.run")[0]
    + """
import os

children = []
for number in range(int(sys.argv[2])):  # forked before anything is open, so that what takes time is imported once
    child = os.fork()
    if child == 0:
        asyncio.run(main(sys.argv[1], f"p{number}", int(sys.argv[3])))
        sys.stderr.flush()
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""
)
"""Many processes of the same kind."""


async def test_failing_writes_among_good_ones_fail_alone(store: Store) -> None:
    run = await start_run(store)
    rollouts = [trajectory(run, id=f"t{i // 2}" if i % 10 == 1 else f"t{i}") for i in range(100)]
    outcomes = await asyncio.gather(*(store.recorder.begin(one, 0) for one in rollouts), return_exceptions=True)
    failed = [i for i, outcome in enumerate(outcomes) if outcome is not None]
    distinct = {one.id for one in rollouts}
    assert len(failed) == 100 - len(distinct) > 0
    assert all(isinstance(outcomes[i], StoreError) for i in failed)
    assert {summary.id for summary in store.find_trajectories()} == distinct


async def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "s.db", 1.0)
    migrate(database)
    writer = Writer(database)

    def run_record(id: str) -> dict[str, object]:
        texts = {"id": id, "name": "", "status": "running", "folder": ""}
        return texts | {"config": {}, "packages": {}, "seed": 0, "started_at": 0.0}

    def good(connection: Connection) -> str:
        connection.execute(insert(table(Runs)), run_record("good"))
        return "done"

    def bad(connection: Connection) -> None:
        connection.execute(insert(table(Runs)), run_record("bad"))
        raise ZeroDivisionError("half way")

    outcomes = await asyncio.gather(writer.write(bad), writer.write(good), writer.write(bad), return_exceptions=True)
    writer.close()
    database.close()
    assert [str(outcome) for outcome in outcomes] == [
        f"{tmp_path}/s.db: half way",
        "done",
        f"{tmp_path}/s.db: half way",
    ]
    assert isinstance(outcomes[0], StoreError)
    with Store.open(tmp_path / "s.db") as store:
        assert [run.id for run in store.runs()] == ["good"]


async def test_errors_do_not_hold_what_was_written(store: Store) -> None:
    run = await start_run(store)
    await store.recorder.begin(trajectory(run, id="x", env_version="secret text"), 0)
    with pytest.raises(StoreError) as caught:
        await store.recorder.begin(trajectory(run, id="x", env_version="secret text"), 0)
    assert "secret text" not in str(caught.value)
    assert "unique" in str(caught.value).lower()


async def test_a_cancelled_caller_does_not_disturb_the_others(store: Store) -> None:
    run = await start_run(store)
    rollouts = [trajectory(run) for _ in range(20)]
    calls = [asyncio.ensure_future(store.recorder.begin(one, 0)) for one in rollouts]
    await asyncio.sleep(0)
    calls[3].cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(type(None)) == 19
    assert isinstance(outcomes[3], asyncio.CancelledError)
    assert {one.id for i, one in enumerate(rollouts) if i != 3} <= {one.id for one in store.find_trajectories()}


async def test_close_finishes_what_was_asked_for_and_then_refuses(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s.db")
    run = await start_run(store)
    rollouts = [trajectory(run) for _ in range(300)]
    calls = [asyncio.ensure_future(store.recorder.begin(one, 0)) for one in rollouts]
    await asyncio.sleep(0)
    store.close()
    store.close()
    assert await asyncio.gather(*calls) == [None] * 300
    with pytest.raises(StoreError, match="closed"):
        await store.recorder.begin(trajectory(run), 0)
    assert not any(thread.name == "agentrl-store-writer" for thread in threading.enumerate())


def test_several_event_loops_share_a_store(store: Store) -> None:
    run = asyncio.run(start_run(store))

    async def rollouts(name: str) -> None:
        await asyncio.gather(*(record(store, trajectory(run, id=f"{name}{i}")) for i in range(20)))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(rollouts(name))) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.find_trajectories()
    assert len(found) == 60
    assert {(one.num_turns, one.reward) for one in found} == {(1, 1.0)}


async def test_turns_of_one_rollout_keep_their_order(store: Store) -> None:
    run = await start_run(store)
    rollout = trajectory(run)
    await store.recorder.begin(rollout, 0)
    rollout.turns = [turn(i, (i,)) for i in range(50)]
    await asyncio.gather(*(store.recorder.add_turn(rollout, one) for one in rollout.turns))
    assert store.load_trajectory(rollout.id) == rollout


def test_j01_32_processes_write_one_database_while_a_reader_holds_a_long_cursor(target: str) -> None:
    subprocess.run([sys.executable, "-c", PROCESS, target, "first", "3"], check=True, timeout=120)
    engine = create_engine(target if "://" in target else f"sqlite:///{target}")
    with engine.connect().execution_options(stream_results=True) as reader:
        cursor = reader.execute(text("select id from trajectories"))
        seen = [cursor.fetchone()]
        writers = [sys.executable, "-c", FORKS, target, "32", "50"]
        done = subprocess.run(writers, capture_output=True, text=True, timeout=400)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(seen + list(cursor)) == [(f"first-{i}",) for i in range(3)]
    engine.dispose()
    with Store.open(target) as store:
        found = [one for one in store.find_trajectories() if not one.id.startswith("first")]
    assert {one.id for one in found} == {f"p{i}-{j}" for i in range(32) for j in range(50)}
    assert {(one.num_turns, one.reward) for one in found} == {(2, 1.0)}
    assert audit(target) == []


def test_processes_make_a_new_database_at_once(empty: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", PROCESS, empty, f"p{i}", "1"]) for i in range(3)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 3
    with Store.open(empty) as store:
        assert {one.id for one in store.find_trajectories()} == {f"p{i}-0" for i in range(3)}
