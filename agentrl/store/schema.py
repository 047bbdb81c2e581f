"""Brings a database to the schema that this code knows, when it is opened."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from agentrl.errors import StoreError
from agentrl.store.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(database: Database) -> None:
    """Create or upgrade the tables, in one transaction; a current database is only read.

    Raises StoreError where the database is newer than this code, or isn't a store.
    """
    with database.reading() as connection:
        if _revision(connection) == head():
            return
    with database.translated(), database.writing() as connection:
        # Another process may have migrated since: what counts is read under the write lock.
        _refuse_foreign(connection, database.location)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


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


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_foreign(connection: Connection, where: str) -> None:
    revision = _revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is None and set(inspect(connection).get_table_names()) - {"alembic_version"}:
        raise StoreError(f"{where} holds tables of another program; give the path of a new file")
    if revision is not None and revision not in known:
        raise StoreError(
            f"{where} has schema {revision}, newer than schema {head()} which this agentrl knows: "
            "upgrade agentrl, or use another database"
        )
