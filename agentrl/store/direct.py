"""Statements that go to the driver as text, compiled once: for the writes that come by the thousand.

SQLAlchemy's way from a statement with its parameters to the driver costs as much as SQLite's own work on a small
record (19 against 12 µs for an insert into `turns`). What is skipped is the conversion of values, so these must be as
the driver takes them: numbers, text and bytes, with JSON as text (see `sealing.seal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, CursorResult, Delete, Dialect, Insert, Update

Values = Mapping[str, Any]
Statement = Insert | Update | Delete


def execute(connection: Connection, statement: Statement, *records: Values) -> CursorResult[Any]:
    """Run a statement that is kept for the life of the process with one or more records, all of the same names."""
    text, order, constants = _compiled(statement, connection.dialect, tuple(records[0]))
    parameters: list[Any] = [{**constants, **record} for record in records]
    if order is not None:
        parameters = [tuple([record[name] for name in order]) for record in parameters]
    return connection.exec_driver_sql(text, parameters[0] if len(parameters) == 1 else parameters)


@lru_cache(256)
def _compiled(
    statement: Statement, dialect: Dialect, names: tuple[str, ...]
) -> tuple[str, tuple[str, ...] | None, Values]:
    """The text, its parameters in their order (None where the driver takes them by name), and those it brings along."""
    compiled: Any = statement.compile(dialect=dialect, column_keys=names if isinstance(statement, Insert) else None)
    constants = {name: value for name, value in compiled.params.items() if name not in names}
    return compiled.string, tuple(compiled.positiontup) if compiled.positional else None, constants
