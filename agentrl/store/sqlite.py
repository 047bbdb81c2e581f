"""SQLite as a store: one file, one writer at a time, readers that don't wait."""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event

from agentrl.errors import StoreError
from agentrl.store.faults import network_file_system
from agentrl.store.mentions import add_functions
from agentrl.store.sealing import to_json

logger = logging.getLogger(__name__)
PAGE_BYTES = 16384
"""A turn takes one to three kB: on SQLite's usual pages of 4096 bytes a seventh of the file was gaps."""
CACHE_KIB = 65536
"""Ids are random, so a write to a large database touches pages all over its indexes."""


def open_engine(url: URL, busy_timeout_s: float, *, read_only: bool) -> Engine:
    """An engine for a file, whose folder is made unless it is `read_only`. Nothing is connected yet.

    Raises StoreError.
    """
    database = url.database
    if database in (None, "", ":memory:"):
        raise StoreError(f"{str(url)!r} is in memory, where a crash loses it: give the path of a file")
    if read_only:
        url = _read_only(url)
    else:
        _make_folder(str(database))
        _warn_of_network(str(database))
    # Parameters are hidden because they hold whole conversations, which don't belong into messages.
    arguments = {"timeout": busy_timeout_s}
    engine = create_engine(url, hide_parameters=True, json_serializer=to_json, connect_args=arguments)
    _set_up(engine, busy_timeout_s, read_only)
    return engine


def begin_reading(connection: Connection) -> None:
    """The driver is told not to begin transactions by itself (see `_set_up`)."""
    connection.exec_driver_sql("BEGIN")


def begin_writing(connection: Connection, wait_s: float | None, busy_timeout_s: float) -> None:
    """Take the write lock; wait for it for `wait_s` (None: as long as usual).

    SQLite can't turn a read transaction into a writing one once another process has written, whatever the busy
    timeout; so a writer says at the start that it will write.
    """
    if wait_s is None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    _wait_at_most(connection, wait_s)
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        _wait_at_most(connection, busy_timeout_s)


def lock_schema(connection: Connection) -> None:
    """Whoever writes is alone anyway."""


def _wait_at_most(connection: Connection, seconds: float) -> None:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def _read_only(url: URL) -> URL:
    """SQLite itself refuses to write there."""
    database = str(url.database)
    name = database if database.startswith("file:") else f"file:{quote(database)}"
    return url.set(database=name).update_query_dict({"mode": "ro", "uri": "true"})


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


def _set_up(engine: Engine, busy_timeout_s: float, read_only: bool) -> None:
    """WAL, so that readers and the writer don't wait for one another; a commit survives kill -9."""

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions by itself, and deferred ones
        if not read_only:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # counts for a new file only
            _use_wal(connection, busy_timeout_s)
        connection.execute(f"PRAGMA cache_size = {-CACHE_KIB}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        add_functions(connection)


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
