"""Opening: what is made, what is refused, and that migrations and tables agree."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from agentrl.errors import StoreError
from agentrl.store import Store
from agentrl.store.database import Database, database_now
from agentrl.store.schema import _config, head
from agentrl.store.tables import Base
from tests.store.builders import record, sql, start_run, trajectory


def test_migrations_make_exactly_the_tables(empty: str) -> None:
    Store.open(empty).close()
    database = Database.open(empty, 1.0)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    database.close()


def test_migrations_make_the_checks_and_the_order_of_keys(tmp_path: Path) -> None:
    """What compare_metadata leaves out."""
    Store.open(tmp_path / "s.db").close()
    made = "select name, sql from sqlite_master where name not like 'alembic%' and name not like 'sqlite%' order by 1"
    migrated = sql(tmp_path / "s.db", made)
    direct = Database.open(tmp_path / "direct.db", 1.0)
    Base.metadata.create_all(direct.engine)
    direct.close()
    assert [normal(text) for _, text in migrated] == [normal(text) for _, text in sql(tmp_path / "direct.db", made)]


def normal(statement: object) -> list[str]:
    """A CREATE statement's parts, whatever their order; SQLite adds columns at the end of the last line."""
    added = re.sub(
        r", (\w+) BLOB (CONSTRAINT \w+) REFERENCES (\w+ \(\w+\))",
        r"\n\1 BLOB\n\2 FOREIGN KEY(\1) REFERENCES \3",
        str(statement),
    )
    parts = re.split(r"\n|, (?=(?:output|env|reward) )", added)
    return sorted(part.strip(" ,\t)") for part in parts)


def test_downgrade_leaves_nothing(empty: str) -> None:
    Store.open(empty).close()
    database, config = Database.open(empty, 1.0), _config()
    with database.writing() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with database.reading() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    database.close()
    Store.open(empty).close()
    assert sql(empty, "select version_num from alembic_version") == [(head(),)]


async def test_open_makes_the_folder_and_keeps_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "s.db"
    with Store.open(path) as store:
        assert store.location == str(path)
        run = await start_run(store)
        rollout = trajectory(run)
        await record(store, rollout)
    with Store.open(f"sqlite:///{path}") as store:
        assert store.load_trajectory(rollout.id) == rollout


def test_j01_wal_is_read_back(tmp_path: Path) -> None:
    Store.open(tmp_path / "s.db").close()
    assert sql(tmp_path / "s.db", "pragma journal_mode") == [("wal",)]
    database = Database.open(tmp_path / "s.db", 30.0)
    with database.reading() as connection:
        names = ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        pragmas = [connection.exec_driver_sql(f"pragma {name}").scalar() for name in names]
    database.close()
    assert pragmas == ["wal", 1, 1, 30000]


def test_a_newer_schema_is_refused_by_name(target: str) -> None:
    Store.open(target).close()
    sql(target, "update alembic_version set version_num = '0999'")
    with pytest.raises(StoreError, match=rf" has schema 0999, newer than schema {head()} .*upgrade agentrl"):
        Store.open(target)
    assert sql(target, "select version_num from alembic_version") == [("0999",)]


def test_a_database_of_another_program_is_left_alone(empty: str) -> None:
    sql(empty, "create table notes (words text)")
    with pytest.raises(StoreError, match=r" holds tables of another program"):
        Store.open(empty)
    with pytest.raises(DBAPIError):
        sql(empty, "select * from alembic_version")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("alter table grades drop column output", "grades.output is missing"),
        ("drop table step_rows", "step_rows is missing"),
        ("update alembic_version set version_num = '0001'", "schema 0001.*output"),
        ("delete from alembic_version", "no version"),
        ("insert into alembic_version values ('0001')", "two versions|several versions"),
    ],
)
def test_a_half_migrated_schema_is_refused_by_name_and_left_as_it_is(target: str, harm: str, says: str) -> None:
    Store.open(target).close()
    sql(target, harm)
    versions = sql(target, "select version_num from alembic_version")
    with pytest.raises(StoreError, match=rf"half-migrated.*({says}).*restore a copy"):
        Store.open(target)
    assert sql(target, "select version_num from alembic_version") == versions


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(StoreError, match=r"notes\.txt: file is not a database \(the file is corrupt"):
        Store.open(path)
    assert path.read_text() == "these are my notes\n" * 100


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    Store.open(path).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996  # the page that lists the tables
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"s\.db: .*malformed.*corrupt"):
        Store.open(path)


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}: unable to open"):
        Store.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="its folder can't be made"):
        Store.open(tmp_path / "file" / "s.db")


def test_a_read_only_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    sql(path, "pragma user_version = 1")
    with pytest.raises(StoreError, match=r"s\.db.*readonly.*writable"):
        Store.open(f"sqlite:///file:{path}?mode=ro&uri=true")


def test_a_locked_database_is_refused_after_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin exclusive")
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"s\.db: database is locked \(another process holds it"):
        Store.open(path, busy_timeout_s=0.1)
    assert 0.1 <= time.monotonic() - began < 5.0
    holder.close()


async def test_reading_needs_no_lock_and_a_write_waits_only_so_long(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Store.open(path) as store:
        run = await start_run(store)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin immediate")
    with Store.open(path, busy_timeout_s=0.05) as store:
        assert [stored.id for stored in store.runs()] == [run]
        with pytest.raises(StoreError, match=r"s\.db: database is locked"):
            await store.finish_run(run)
        holder.execute("rollback")
        await store.finish_run(run)
    holder.close()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (":memory:", "in memory"),
        ("sqlite://", "in memory"),
        ("no such://x", "no database URL"),
        ("nosuchdialect://host/db", "no driver 'nosuchdialect'.*postgresql.psycopg://"),
        ("mysql://host/db", "no driver 'mysql'"),
        ("postgresql+psycopg2://host/db", "no driver 'postgresql.psycopg2'.*postgresql.psycopg://"),
        ("postgresql://user@host/db?password=secret", r"password in a URL's query.*PGPASSWORD"),
    ],
)
def test_what_can_not_be_a_store_is_refused(target: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store.open(target)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreError) as caught:
        Store.open("nosuchdialect://user:secret@host/db")
    assert "secret" not in str(caught.value)


def test_the_schema_and_the_clock_are_portable_to_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    statements = [str(CreateTable(table).compile(dialect=dialect)) for table in Base.metadata.sorted_tables]
    made: set[str] = set()
    for table in Base.metadata.sorted_tables:  # PostgreSQL knows no reference to a table that comes later
        made.add(table.name)
        assert {key.column.table.name for key in table.foreign_keys} <= made
    assert len(statements) == len(made) == 15
    assert "clock_timestamp()" in str(select(database_now()).compile(dialect=dialect))
