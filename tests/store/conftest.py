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
    yield from database(request, tmp_path, template=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The path or URL of a database without tables."""
    yield from database(request, tmp_path, template=False)


def database(request: pytest.FixtureRequest, folder: Path, *, template: bool) -> Iterator[str]:
    """Of the kind that the fixture's parameter names; `template`: PostgreSQL's has the tables already."""
    if request.param == "sqlite":
        yield str(folder / "store.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database(*([request.getfixturevalue("postgres_template")] if template else [])) as url:
        yield url


@pytest.fixture
def store(target: str) -> Iterator[Store]:
    with Store.open(target) as opened:
        yield opened
