"""How databases are opened: SQLite and PostgreSQL differ here, in a file for each, and nowhere else."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import URL, Connection, Double, Engine, Integer, LargeBinary, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from agentrl.errors import AgentRLError, DamagedRecord, StoreError
from agentrl.store import postgresql, sqlite
from agentrl.store.faults import advice, cause_of, text_of
from agentrl.urls import hide_passwords

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


class num_bytes(FunctionElement[int]):
    """How many bytes a text, JSON or blob takes."""

    inherit_cache = True
    type = Integer()


@compiles(num_bytes, "sqlite")
def _sqlite_num_bytes(element: num_bytes, compiler: Any, **options: Any) -> str:
    return f"length(cast({compiler.process(element.clauses, **options)} as blob))"


@compiles(num_bytes)
def _num_bytes(element: num_bytes, compiler: Any, **options: Any) -> str:
    (value,) = element.clauses
    text = "" if isinstance(value.type, LargeBinary) else "::text"
    return f"octet_length({compiler.process(value, **options)}{text})"


class whole(FunctionElement[int]):
    """A number that isn't negative, without its fraction."""

    inherit_cache = True
    type = Integer()


@compiles(whole, "sqlite")
def _sqlite_whole(element: whole, compiler: Any, **options: Any) -> str:
    return f"cast({compiler.process(element.clauses, **options)} as integer)"


@compiles(whole)
def _whole(element: whole, compiler: Any, **options: Any) -> str:
    return f"floor({compiler.process(element.clauses, **options)})::integer"


@dataclass(kw_only=True, slots=True, frozen=True)
class Database:
    """An opened database. What goes wrong with it leaves as a StoreError that names it and says what to do."""

    engine: Engine
    location: str
    """The path, or the URL without its password."""
    busy_timeout_s: float
    """How long a write waits for another process's."""
    read_only: bool

    @classmethod
    def open(cls, target: str | Path, busy_timeout_s: float, *, read_only: bool = False) -> Database:
        """A database at a SQLite path or a SQLAlchemy URL; nothing is connected yet. Raises StoreError."""
        url = _parse_url(target)
        backend = sqlite if url.get_backend_name() == "sqlite" else postgresql
        engine = backend.open_engine(url, busy_timeout_s, read_only=read_only)
        return cls(engine=engine, location=_location(url), busy_timeout_s=busy_timeout_s, read_only=read_only)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that reads one state and takes no lock. Raises StoreError."""
        with self.translated(), self.engine.connect() as connection:
            self._backend.begin_reading(connection)
            try:
                yield connection
            except (ValueError, KeyError, struct.error) as error:
                raise DamagedRecord(f"{self.location}: a record can't be read, it was damaged: {error}") from error

    @contextmanager
    def writing(self, *, patient: bool = True) -> Iterator[Connection]:
        """A transaction that commits when the block ends. One that isn't `patient` waits `IMPATIENT_S` for a lock.

        Errors leave as they come, for the writer tells them apart (see `error`).
        """
        if self.read_only:
            raise StoreError(f"{self.location} was opened to be read only")
        with self.engine.begin() as connection:
            wait_s = None if patient else min(IMPATIENT_S, self.busy_timeout_s)
            self._backend.begin_writing(connection, wait_s, self.busy_timeout_s)
            yield connection

    def lock_schema(self, connection: Connection) -> None:
        """Let no other process migrate until the transaction of `writing` ends."""
        self._backend.lock_schema(connection)

    @property
    def target(self) -> str:
        """What opens it again: the path, or the URL with its password. Not to be shown or written down."""
        if self._backend is sqlite:
            return self.location
        return self.engine.url.render_as_string(hide_password=False)

    @property
    def _backend(self) -> ModuleType:
        return sqlite if self.engine.dialect.name == "sqlite" else postgresql

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
        what_to_do = advice(error)
        text = " ".join(text_of(error).split()) or type(cause_of(error)).__name__
        return StoreError(f"{self.location}: {text}" + (f" ({what_to_do})" if what_to_do else ""))

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()


def _parse_url(target: str | Path) -> URL:
    """A SQLAlchemy URL, or the path of a SQLite file. Raises StoreError for what can't be a store."""
    text = str(target)
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise StoreError(f"{hide_passwords(text)!r} is no database URL: {hide_passwords(str(error))}") from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise StoreError(
            f"no driver {url.drivername!r} is used here: give the path of a SQLite file or postgresql+psycopg://…"
        )
    return url


def _location(url: URL) -> str:
    """The database's name for messages: a path, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.render_as_string() if url.query else str(url.database)
    bare = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, url.query)
    return bare.render_as_string()
