"""Statements that go past SQLAlchemy to the driver, as text that is compiled once: for those that come by the thousand.

SQLAlchemy's way from a statement with its parameters to the driver costs many times SQLite's own work on a small
record. What is skipped is the conversion of values, so these must be as the driver takes and gives them: numbers, text
and bytes, with JSON as text (see `sealing.seal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import Connection, Delete, Dialect, Insert, Select, Update, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError

from agentrl.store.tables import Base, table

Values = Mapping[str, Any]
Statement = Insert | Update | Delete | Select[*tuple[Any, ...]]
"""One that is kept for the life of the process."""


def execute(connection: Connection, statement: Statement, *records: Values) -> int:
    """Run a statement with one or more records, all of the same names; how many database records it changed."""
    return _run(connection, statement, records).rowcount


def find(connection: Connection, statement: Statement, values: Values) -> dict[str, Any] | None:
    """The first record that a statement gives, by the names of its columns; None: there is none."""
    cursor = _run(connection, statement, [values])
    record, columns = cursor.fetchone(), cursor.description
    cursor.close()
    return None if record is None else {column[0]: value for column, value in zip(columns, record, strict=True)}


@cache
def insertion(model: type[Base]) -> Insert:
    """The INSERT into the table behind `model`, made once: building and hashing a statement costs more than SQLite."""
    return insert(table(model))


@cache
def insertion_unless_there(model: type[Base], dialect: str) -> Insert:
    """As `insertion`; a record that has the same key already stays as it is, also where another process adds it now."""
    if dialect == "sqlite":
        return sqlite.insert(table(model)).on_conflict_do_nothing()
    return postgresql.insert(table(model)).on_conflict_do_nothing()


def _run(connection: Connection, statement: Statement, records: tuple[Values, ...] | list[Values]) -> DBAPICursor:
    text, order, constants = _compiled(statement, connection.dialect, tuple(records[0]))
    parameters: list[Any] = [{**constants, **record} for record in records] if constants else list(records)
    if order is not None:
        parameters = [tuple([record[name] for name in order]) for record in parameters]
    cursor = connection.connection.cursor()
    driver_error = connection.dialect.loaded_dbapi.Error
    try:
        if len(parameters) == 1:
            cursor.execute(text, parameters[0])
        else:
            cursor.executemany(text, parameters)
    except driver_error as error:  # leaves as SQLAlchemy's, like those of all other statements
        raise DBAPIError.instance(text, None, error, driver_error, hide_parameters=True) from error
    return cursor


@lru_cache(256)
def _compiled(
    statement: Statement, dialect: Dialect, names: tuple[str, ...]
) -> tuple[str, tuple[str, ...] | None, Values]:
    """The text, its parameters in their order (None where the driver takes them by name), and those it brings along."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=names if isinstance(statement, Insert) else None)
    constants = {name: value for name, value in compiled.params.items() if name not in names}
    return compiled.string, tuple(compiled.positiontup) if compiled.positional else None, constants
