"""How databases are opened. The only file that knows which database it is."""

from __future__ import annotations

import logging
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Double, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from agentrl.errors import AgentRLError, StoreError
from agentrl.store.faults import advice, cause_of, network_file_system
from agentrl.store.sealing import to_json

logger = logging.getLogger(__name__)
IMPATIENT_S = 0.5
"""How long a write waits for the lock once one has waited its whole time in vain."""


class database_now(FunctionElement[float]):
    """The database's clock in Unix seconds: the one clock that all workers share."""

    inherit_cache = True
    type = Double()


@compiles(database_now, "sqlite")
def _sqlite_now(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now)
def _now(*_: Any, **__: Any) -> str:
    return "extract(epoch from clock_timestamp())"


@dataclass(kw_only=True, slots=True, frozen=True)
class Database:
    """An opened database. What goes wrong with it leaves as a StoreError that names it and says what to do."""

    engine: Engine
    location: str
    """The path, or the URL without its password."""
    busy_timeout_s: float
    """How long a write waits for another process's."""

    @classmethod
    def open(cls, target: str | Path, busy_timeout_s: float) -> Database:
        """A database at a SQLite path or a SQLAlchemy URL; nothing is connected yet. Raises StoreError."""
        url = _parse_url(target)
        location = _location(url)
        engine = _open_engine(url, location, busy_timeout_s)
        return cls(engine=engine, location=location, busy_timeout_s=busy_timeout_s)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads one state and takes no lock. Raises StoreError."""
        with self.translated(), self.engine.connect() as connection:
            self._begin(connection, "BEGIN")
            try:
                yield connection
            except (ValueError, KeyError, struct.error) as error:
                raise StoreError(f"{self.location}: a record can't be read, it was damaged: {error!r}") from error

    @contextmanager
    def writing(self, *, patient: bool = True) -> Iterator[Connection]:
        """A transaction that takes the write lock when it begins, and commits when the block ends.

        SQLite can't turn a read transaction into a writing one once another process has written, whatever the
        busy timeout; so a writer says at the start that it will write. One that isn't `patient` waits for the lock
        for `IMPATIENT_S` at most. Errors leave as they come, for the writer tells them apart (see `error`).
        """
        with self.engine.begin() as connection:
            if not patient:
                self._wait_at_most(connection, min(IMPATIENT_S, self.busy_timeout_s))
            try:
                self._begin(connection, "BEGIN IMMEDIATE")
            finally:
                if not patient:
                    self._wait_at_most(connection, self.busy_timeout_s)
            yield connection

    def _wait_at_most(self, connection: Connection, seconds: float) -> None:
        if self.engine.dialect.name == "sqlite":
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    def _begin(self, connection: Connection, statement: str) -> None:
        """SQLite's driver is told not to begin transactions (see `_set_up_sqlite`); others do it by themselves."""
        if self.engine.dialect.name == "sqlite":
            connection.exec_driver_sql(statement)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of the database leave as StoreErrors."""
        try:
            yield
        except SQLAlchemyError as error:
            raise self.error(error) from error

    def error(self, error: BaseException) -> AgentRLError:
        """`error` as one that a user can act on. An AgentRLError stays as it is."""
        if isinstance(error, AgentRLError):
            return error
        cause, what_to_do = cause_of(error), advice(error)
        text = " ".join(str(cause).split()) or type(cause).__name__
        return StoreError(f"{self.location}: {text}" + (f" ({what_to_do})" if what_to_do else ""))

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()


def _parse_url(target: str | Path) -> URL:
    """A SQLAlchemy URL, or the path of a SQLite file. Raises StoreError for what can't be a store."""
    text = str(target)
    try:
        url = make_url(text) if "://" in text else URL.create("sqlite", database=str(Path(text).expanduser()))
    except ArgumentError as error:
        raise StoreError(f"{text!r} is no database URL: {error}") from error
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise StoreError(f"{text!r} is in memory, where a crash loses it: give the path of a file")
    return url


def _location(url: URL) -> str:
    """The database's name for messages: a path, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.render_as_string(hide_password=True)


def _open_engine(url: URL, location: str, busy_timeout_s: float) -> Engine:
    """An engine for `url`; the parent folder of a SQLite file is made. Nothing is connected yet."""
    is_sqlite = url.get_backend_name() == "sqlite"
    try:
        # Parameters are hidden because they hold whole conversations, which don't belong into messages.
        arguments: dict[str, Any] = {"timeout": busy_timeout_s} if is_sqlite else {}
        engine = create_engine(url, hide_parameters=True, json_serializer=to_json, connect_args=arguments)
    except (NoSuchModuleError, ImportError) as error:
        raise StoreError(f"no driver for {location}: {error}; install it, e.g. agentrl[postgres]") from error
    if is_sqlite:
        _make_folder(location)
        _warn_of_network(location)
        _set_up_sqlite(engine, busy_timeout_s)
    return engine


def _make_folder(database: str) -> None:
    if database.startswith("file:"):
        return
    try:
        Path(database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{database}: its folder can't be made: {error}") from error


def _warn_of_network(database: str) -> None:
    kind = None if database.startswith("file:") else network_file_system(Path(database).parent)
    if kind is not None:
        logger.warning(
            "%s is on a network file system (%s), where SQLite's locks can't be relied on: use a local disk, "
            "or PostgreSQL for several machines",
            database,
            kind,
        )


def _set_up_sqlite(engine: Engine, busy_timeout_s: float) -> None:
    """WAL, so that readers and the writer don't wait for one another; a commit survives kill -9."""

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions by itself, and deferred ones
        _use_wal(connection, busy_timeout_s)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")


def _use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to WAL and read it back. The switch doesn't honour the busy timeout, hence the loop."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise sqlite3.OperationalError(f"no write-ahead logging there (journal mode {mode}); use a local disk")
