"""`agentrl db`: what is there, what is bad, what may go, which schema."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.interrupts import locked
from agentrl.store import RunStatus, Store
from agentrl.store.schema import head
from tests.store.builders import completed, record, sql, start_run, trajectory

SCHEMA_1 = Path(__file__).parent.parent / "store" / "schemas" / "0001.sql"


def db(*words: str) -> int:
    return main(["db", *words])


@pytest.fixture
def database(tmp_path: Path) -> str:
    """One run that ended and has a rollout that nobody uses."""
    path = str(tmp_path / "store.db")

    async def write() -> None:
        with Store.open(path) as store:
            run = await start_run(store)
            await store.queue.drop(await completed(store, run), "too few")
            await record(store, trajectory(run, id="kept"))
            await store.finish_run(run, RunStatus.COMPLETED)

    asyncio.run(write())
    return path


def test_stats_count_by_table_and_by_run(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert db("stats", "--db", database) == 0
    text = capsys.readouterr().out
    assert re.search(r"^trajectories +3 +[\d,]+$", text, re.M) and re.search(r"^total +[\d,]+ bytes", text, re.M)
    assert re.search(r"^\w{12}  toy run  completed +1 +3 +3 +6 +[\d,]+ +0$", text, re.M)


def test_verify_names_bad_records_and_fails(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert db("verify", "--db", database) == 0
    assert re.fullmatch(r"every one of \d+ records is as it was written\n", capsys.readouterr().out)
    sql(database, "update turns set logprobs = x'00', text = 'secret text' where trajectory_id = 'kept'")
    sql(database, "update runs set status = 'shrug'")
    assert db("verify", "--db", database) == 1
    text = capsys.readouterr().out
    assert "turns: trajectory_id=kept, turn=0: unpack requires" in text and "'shrug' is not a valid RunStatus" in text
    assert text.endswith("2 bad records\n") and "secret text" not in text


def test_gc_deletes_nothing_unless_it_is_told_to(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert db("gc", "--db", database, "--older-than", "100000") == 0
    assert "would delete 0 rollouts" in capsys.readouterr().out
    assert db("gc", "--db", database) == 0
    assert "would delete 2 rollouts that nobody uses, 0 tasks" in capsys.readouterr().out
    assert sql(database, "select count(*) from trajectories") == [(3,)]
    assert db("gc", "--yes", "--db", database) == 0
    assert "deleted 2 rollouts" in capsys.readouterr().out
    assert sql(database, "select id from trajectories") == [("kept",)]
    assert db("verify", "--db", database) == 0


def test_gc_takes_whole_runs_but_none_that_is_at_work(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    sql(database, f"update runs set status = 'running', folder = '{folder}'")
    command = ["gc", "--run", "toy run", "--yes", "--db", database]
    with locked(folder):
        assert db(*command) == 2
    assert "is at work on this run" in capsys.readouterr().err
    sql(database, "update runs set folder = '/elsewhere'")
    assert db(*command) == 1
    assert "is running, maybe on another machine" in capsys.readouterr().err
    assert sql(database, "select count(*) from runs") == [(1,)]
    sql(database, f"update runs set folder = '{folder}'")  # killed: it is running by its record alone
    assert db(*command) == 0
    assert re.search(r"deleted run \w{12} with all its records, 0 rollouts .*, 1 tasks", capsys.readouterr().out)
    assert sql(database, "select count(*) from turns") == sql(database, "select count(*) from runs") == [(0,)]


def test_migrate_tells_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA_1.read_text())
    connection.close()
    assert db("migrate", "--db", str(path)) == 0 == db("migrate", "--db", str(path))
    assert capsys.readouterr().out == f"has schema {head()} now, had 0001\nhas schema {head()} already\n"
    assert db("migrate", "--db", str(tmp_path / "none.db")) == 1
    assert "no database there" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["stats", "verify", "gc"])
def test_a_run_that_is_not_there_or_a_database_of_another_program_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    path = tmp_path / "notes.db"
    sql(path, "create table notes (words text)")
    assert db(action, "--db", str(path)) == 1
    assert "holds tables of another program" in capsys.readouterr().err
