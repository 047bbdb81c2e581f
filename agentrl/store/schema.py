"""Brings a database to the schema that this code knows, when it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import SQLAlchemyError

from agentrl.errors import StoreError
from agentrl.store.database import Database, database_now
from agentrl.store.faults import is_down, text_of
from agentrl.store.tables import Base, Groups
from agentrl.types import GroupState

MIGRATIONS = Path(__file__).parent / "migrations"


class Migrated(NamedTuple):
    """The schema that a database had, None where it was empty, and the one that it has now."""

    before: str | None
    after: str


def migrate(database: Database) -> Migrated:
    """Create or upgrade the tables, in one transaction; a current database is only read.

    Raises StoreError where the database is newer than this code, half-migrated, or isn't a store, and where it is older
    and a run is playing.
    """
    where = database.location
    with database.reading() as connection:
        before = _revision(connection, where)
        if before == head():
            _check_columns(connection, where)
            return Migrated(before, before)
    with database.translated(), database.writing() as connection:
        database.lock_schema(connection)
        # Another process may have migrated since: what counts is read under the lock.
        before = _revision(connection, where)
        _refuse_foreign(connection, before, where)
        if before is not None:
            _refuse_live(connection, where)
        _upgrade(connection, before, where)
        _check_columns(connection, where)
    return Migrated(before, head())


def check(database: Database) -> None:
    """Nothing is changed. Raises StoreError unless the database has the tables that this code reads."""
    where = database.location
    with database.reading() as connection:
        revision = _revision(connection, where)
        if revision == head():
            return _check_columns(connection, where)
        _refuse_foreign(connection, revision, where)
    if revision is None:
        raise StoreError(f"{where} has no tables yet: a run makes them, e.g. agentrl train --env calculator")
    raise StoreError(f"{where} has schema {revision}, older than schema {head()}: agentrl db migrate upgrades it")


def head() -> str:
    """The revision that this code knows last."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "the package has no migrations"
    return revision


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(connection: Connection, before: str | None, where: str) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except SQLAlchemyError as error:
        if is_down(error):
            raise
        raise _half_migrated(where, f"it says schema {before}, but {text_of(error)}") from error


def _revision(connection: Connection, where: str) -> str | None:
    revisions = MigrationContext.configure(connection).get_current_heads()
    if len(revisions) > 1:
        raise _half_migrated(where, f"it has several versions: {', '.join(sorted(revisions))}")
    return revisions[0] if revisions else None


def _refuse_foreign(connection: Connection, revision: str | None, where: str) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    if revision is None and tables & set(Base.metadata.tables):
        raise _half_migrated(where, f"it has no version, but tables {', '.join(sorted(tables))}")
    if revision is None and tables:
        raise StoreError(f"{where} holds tables of another program; use another database")
    if revision is not None and revision not in known:
        raise StoreError(
            f"{where} has schema {revision}, newer than schema {head()} which this agentrl knows: "
            "upgrade agentrl, or use another database"
        )


def _refuse_live(connection: Connection, where: str) -> None:
    """Whoever plays with an older agentrl goes on to write, and read, by the older schema: ids would be garbled."""
    left_s = Groups.lease_until - database_now()
    query = select(Groups.run_id, left_s).where(Groups.state == GroupState.LEASED.value, left_s > 0)
    lease = connection.execute(query.order_by(left_s.desc()).limit(1)).one_or_none()
    if lease is not None:
        raise StoreError(
            f"{where} has an older schema, and run {lease[0]} is writing to it: it was left as it is. Wait until that "
            f"ends, or stop it; if it was killed, try again in {lease[1]:.0f} s"
        )


def _check_columns(connection: Connection, where: str) -> None:
    """Raises StoreError unless what the code reads is there: somebody may have altered tables by hand."""
    there = {name: {column["name"] for column in columns} for name, columns in _columns(connection)}
    for name, table in Base.metadata.tables.items():
        if name not in there:
            raise _half_migrated(where, f"it says schema {head()}, but table {name} is missing")
        missing = sorted(set(table.columns.keys()) - there[name])
        if missing:
            raise _half_migrated(where, f"it says schema {head()}, but column {name}.{missing[0]} is missing")


def _columns(connection: Connection) -> Iterator[tuple[str, list[ReflectedColumn]]]:
    for (_, name), columns in inspect(connection).get_multi_columns().items():
        yield str(name), columns


def _half_migrated(where: str, why: str) -> StoreError:
    return StoreError(f"{where} is half-migrated: {why}. It was left as it is: restore a copy, or use another database")
