"""PostgreSQL as a store: many writers at a time, on many machines; locks are on records."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from agentrl.errors import StoreError
from agentrl.store.sealing import to_json

SCHEMA_LOCK = 0x6167656E74726C
"""Of PostgreSQL's advisory locks, the one that a migration holds ("agentrl" in ASCII)."""
CONNECTING = {"connect_timeout": 10, "client_encoding": "utf8", "keepalives_idle": 30, "keepalives_interval": 10}
"""What the URL may say otherwise. Keepalives: a server whose machine is gone is noticed within two minutes."""


def open_engine(url: URL, busy_timeout_s: float, *, read_only: bool) -> Engine:
    """An engine for a server. Nothing is connected yet. Raises StoreError where the URL can't be used.

    `read_only` changes nothing here: transactions that read are so in any case.
    """
    if {"password", "sslpassword"} & set(url.query):
        raise StoreError("a password in a URL's query can't be hidden: put it before the @, in PGPASSWORD or ~/.pgpass")
    arguments: dict[str, Any] = {name: value for name, value in CONNECTING.items() if name not in url.query}
    try:
        engine = create_engine(
            url, hide_parameters=True, json_serializer=to_json, connect_args=arguments, pool_pre_ping=True
        )
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs {error.name}; install it with: pip install 'agentrl[postgres]'") from error
    _set_up(engine, busy_timeout_s)
    return engine


def begin_reading(connection: Connection) -> None:
    """All queries of the transaction see one state."""
    connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def begin_writing(connection: Connection, wait_s: float | None, busy_timeout_s: float) -> None:
    """Locks are taken record by record; wait for each for `wait_s` (None: as long as usual)."""
    if wait_s is not None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_milliseconds(wait_s)}")


def lock_schema(connection: Connection) -> None:
    """Let one process at a time migrate, until the transaction ends."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")


def _milliseconds(seconds: float) -> int:
    """At least one: PostgreSQL takes 0 for no limit at all."""
    return max(1, round(seconds * 1000))


def _set_up(engine: Engine, busy_timeout_s: float) -> None:
    """Each connection waits for locks for `busy_timeout_s`; the server notices within two minutes that we are gone."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            name = connection.info.dbname
            connection.close()
            raise StoreError(
                f"database {name!r} has encoding {encoding}, which can't hold every text: make one "
                "with createdb --encoding UTF8 --template template0"
            )
        connection.execute(f"SET lock_timeout = {_milliseconds(busy_timeout_s)}")
        connection.execute("SET tcp_keepalives_idle = 30")
        connection.execute("SET tcp_keepalives_interval = 10")
        connection.commit()
