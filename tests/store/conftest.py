"""A store in a fresh database, of SQLite and of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store import Store
from tests.postgres import PostgresServer, postgres, postgres_template

__all__ = ["postgres", "postgres_template"]


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The path or URL of a database without records; a test that takes it runs on both."""
    if request.param == "sqlite":
        yield str(tmp_path / "store.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database(request.getfixturevalue("postgres_template")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The path or URL of a database without tables."""
    if request.param == "sqlite":
        yield str(tmp_path / "empty.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def store(target: str) -> Iterator[Store]:
    with Store.open(target) as opened:
        yield opened
