"""A database at fault: every write that waits hears of it by name, what was finished stays, and it can go on."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from agentrl.errors import AgentRLError, StoreError
from agentrl.store import Store
from agentrl.store.database import Database
from agentrl.store.faults import network_file_system
from agentrl.store.schema import migrate
from agentrl.store.writer import Writer
from agentrl.types import Message, StopReason
from tests.store.builders import record, sql, start_run, tool_call, trajectory, turn
from tests.store.disks import small_disk


async def write_big(store: Store, run: str, name: str, num: int) -> dict[str, BaseException | int | None]:
    """Record rollouts of 20 kB at once; what came of each, by id."""
    message = Message(role="assistant", content="x" * 20_000)
    rollouts = [trajectory(run, id=f"{name}{i}", turns=[turn(message=message)]) for i in range(num)]
    outcomes = await asyncio.gather(*(record(store, one) for one in rollouts), return_exceptions=True)
    return {one.id: outcome for one, outcome in zip(rollouts, outcomes, strict=True)}


def check(store: Store, outcomes: dict[str, Any], says: str) -> int:
    """Every write failed by name or is there whole; how many failed."""
    failed = {id: outcome for id, outcome in outcomes.items() if isinstance(outcome, BaseException)}
    assert all(isinstance(error, StoreError) and says in str(error) for error in failed.values()), failed
    assert all(store.location in str(error) and "\n" not in str(error) for error in failed.values())
    for id in outcomes.keys() - failed.keys():
        sample = store.load_sample(id)
        assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0
        assert len(sample.trajectory.turns[0].message.text) == 20_000
    return len(failed)


def is_sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    found = connection.execute("pragma integrity_check").fetchone()
    connection.close()
    return bool(found == ("ok",))


async def test_a_full_disk_is_named_and_what_was_finished_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        path = disk.folder / "s.db"
        with Store.open(path) as store:
            run = await start_run(store)
            before = await write_big(store, run, "before", 10)
            assert check(store, before, "") == 0
            ballast = disk.fill()
            assert check(store, await write_big(store, run, "full", 60), "disk is full (free some space") == 60
            check(store, before, "")
            ballast.unlink()
            assert check(store, await write_big(store, run, "after", 10), "") == 0
        assert is_sound(path)


@pytest.fixture
def page_limit() -> Iterator[list[int]]:
    """SQLite's own limit on the size of a file, for every connection; [0]: none."""
    limit = [0]

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {limit[0] or 2**30}")

    event.listen(Engine, "begin", begin)
    yield limit
    event.remove(Engine, "begin", begin)


async def test_a_full_database_is_named_and_goes_on_once_there_is_space(tmp_path: Path, page_limit: list[int]) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        run = await start_run(store)
        before = await write_big(store, run, "before", 10)
        page_limit[0] = 100
        assert 0 < check(store, await write_big(store, run, "full", 100), "full (free some space, then resume") < 101
        check(store, before, "")
        page_limit[0] = 0
        assert check(store, await write_big(store, run, "after", 10), "") == 0
    assert is_sound(path)


async def test_a_lock_that_outlasts_the_timeout_reaches_all_who_wait_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path, busy_timeout_s=3.0) as store:
        run = await start_run(store)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("begin immediate")
        first = asyncio.ensure_future(store.recorder.begin(trajectory(run), 0))
        await asyncio.sleep(0.1)  # the writer waits for the lock with the first write; the others come meanwhile
        outcomes = await asyncio.gather(
            first, *(store.recorder.begin(trajectory(run), 0) for _ in range(400)), return_exceptions=True
        )
        assert {str(outcome) for outcome in outcomes} == {str(outcomes[0])}
        assert all(outcome is outcomes[0] for outcome in outcomes)
        assert f"{path}: database is locked (another process holds it" in str(outcomes[0])
        with pytest.raises(StoreError, match="locked"):
            await store.finish_run(run)
        holder.close()
        assert check(store, await write_big(store, run, "after", 3), "") == 0


async def test_a_lock_that_clears_in_time_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path, busy_timeout_s=60.0) as store:
        run = await start_run(store)
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("begin immediate")
        timer = threading.Timer(0.5, holder.close)
        timer.start()
        assert check(store, await write_big(store, run, "a", 3), "") == 0
        timer.join()


async def test_after_a_lock_the_whole_timeout_counts_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path, busy_timeout_s=2.0) as store:
        run = await start_run(store)
        for _ in range(2):  # the second lock is longer than an impatient write waits
            holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            holder.execute("begin immediate")
            with pytest.raises(StoreError, match="locked"):
                await store.finish_run(run)
            holder.close()
            await store.finish_run(run)
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("begin immediate")
        timer = threading.Timer(1.0, holder.close)
        timer.start()
        await store.finish_run(run)
        timer.join()


async def test_a_read_only_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        path = disk.folder / "s.db"
        Store.open(path).close()
        disk.mount("remount", "ro")
        for target in (path, disk.folder / "new.db", disk.folder / "folder" / "new.db"):
            with pytest.raises(StoreError, match=f"{target}: .*(folder that you may write to|can't be made)"):
                Store.open(target)
        disk.mount("remount", "rw")
        with Store.open(path) as store:
            await start_run(store)


async def test_a_page_that_was_damaged_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        run = await start_run(store)
        outcomes = await write_big(store, run, "a", 30)
        assert check(store, outcomes, "") == 0
    content = bytearray(path.read_bytes())
    for page in range(len(content) // 2 // 4096, len(content) // 4096):
        content[page * 4096 : (page + 1) * 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with Store.open(path) as store, pytest.raises(StoreError, match=r"s\.db: .*malformed \(the file is corrupt"):
        for id in outcomes:
            store.load_sample(id)


DAMAGES = [
    ("turns", "logprobs", "substr(logprobs, 1, 3)", "unpack requires"),
    ("turns", "sampled_ids", "(select logprobs from turns limit 1)", "are no ids"),
    ("turns", "sampler", "'shrug'", "'shrug' is not a valid Sampler"),
    ("engine_calls", "raw", "(select sampled_ids from turns limit 1)", "codec can't decode|Expecting value"),
    ("tool_calls", "status", "'shrug'", "'shrug' is not a valid CallStatus"),
    ("trajectories", "stop_reason", "'shrug'", "'shrug' is not a valid StopReason"),
]
ONLY_SQLITE = [
    ("turns", "message", "'{'", "message is no JSON"),
    ("turns", "text", "cast(x'ff' as text)", "Could not decode to UTF-8 column 'text'"),
]


@pytest.mark.parametrize(("table", "column", "value", "why"), [*DAMAGES, *ONLY_SQLITE])
async def test_a_record_that_was_damaged_is_named_and_the_rest_stays_readable(
    store: Store, table: str, column: str, value: str, why: str
) -> None:
    if "://" in store.location and (table, column, value, why) in ONLY_SQLITE:
        pytest.skip("PostgreSQL takes no such value")
    run = await start_run(store)
    good, bad = (trajectory(run, turns=[turn(tool_calls=[tool_call()])]) for _ in range(2))
    for rollout in (good, bad):
        await record(store, rollout)
    key = "id" if table == "trajectories" else "trajectory_id"
    sql(store.location, f"update {table} set {column} = {value} where {key} = '{bad.id}'")
    with pytest.raises(StoreError, match=f"was damaged: {table}: {key}={bad.id}.*{why}"):
        store.load_trajectory(bad.id)
    assert store.load_trajectory(good.id) == good


@pytest.mark.parametrize("error", [SystemExit("gone"), MemoryError("too much"), KeyboardInterrupt("odd")])
async def test_whatever_a_write_raises_nobody_is_left_waiting(tmp_path: Path, error: BaseException) -> None:
    database = Database.open(tmp_path / "s.db", 1.0)
    migrate(database)
    writer = Writer(database)

    def fail(connection: Connection) -> None:
        raise error

    outcomes = await asyncio.gather(*(writer.write(fail) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, StoreError) and str(error) in str(outcome) for outcome in outcomes)
    assert await writer.write(lambda connection: "still there") == "still there"
    writer.close()
    database.close()


async def test_j07_an_update_that_fails_leaves_what_was_there(store: Store) -> None:
    """Reward and tool calls are written in one transaction."""
    run = await start_run(store)
    rollout = trajectory(run)
    await store.recorder.begin(rollout, 0)
    rollout.turns = [turn(tool_calls=[tool_call(result="kept")])]
    await store.recorder.add_turn(rollout, rollout.turns[0])
    with pytest.raises(AgentRLError):
        await store.recorder.update_turn(rollout, turn(reward=9.0, tool_calls=[tool_call(), tool_call()]))
    assert store.load_trajectory(rollout.id) == rollout


@pytest.mark.parametrize(
    ("kind", "expected"), [("nfs4", "nfs4"), ("cifs", "cifs"), ("fuse.sshfs", "fuse.sshfs"), ("ext4", None)]
)
def test_j01_a_network_file_system_is_warned_of(
    tmp_path: Path, kind: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "far away"
    place.mkdir()
    mounts = tmp_path / "mounts"
    escaped = str(place).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {escaped} {kind} rw 0 0\n")
    assert network_file_system(place / "deep" / "er", mounts) == expected
    assert network_file_system(tmp_path, mounts) is None
    assert network_file_system(place, tmp_path / "no mounts") is None
    monkeypatch.setattr("agentrl.store.sqlite.network_file_system", lambda path: network_file_system(path, mounts))
    with caplog.at_level(logging.WARNING):
        Store.open(place / "s.db").close()
        Store.open(tmp_path / "s.db").close()
    said = [message for message in caplog.messages if "network file system" in message]
    assert [str(place / "s.db") in message for message in said] == [True] * (expected is not None)
