"""A reader who has let himself in, and a stage that no test changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from agentrl.store import Store
from agentrl.view.app import make_app
from agentrl.view.viewer import Viewer
from tests.view.corpus import Held, fill
from tests.view.stage import Stage, set_up

TOKEN = "the-token"


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return set_up(tmp_path_factory.mktemp("view"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Held]]:
    """A database, and where each of the hostile strings is in it."""
    return fill(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def app(stage: Stage) -> Iterator[object]:
    with Store.open(stage.database, read_only=True) as store:
        yield make_app(Viewer(store=store, database=stage.database), TOKEN)


def client_of(app: object) -> httpx.AsyncClient:
    """A stranger's browser."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8123", follow_redirects=True)


@pytest.fixture
async def stranger(app: object) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


@pytest.fixture
async def reader(stranger: httpx.AsyncClient) -> httpx.AsyncClient:
    await stranger.get("/", params={"token": TOKEN})
    return stranger


@asynccontextmanager
async def reading(database: str, shown: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A reader of another database, which pages call `shown`."""
    with Store.open(database, read_only=True) as store:
        async with client_of(make_app(Viewer(store=store, database=shown or database), TOKEN)) as client:
            await client.get("/", params={"token": TOKEN})
            yield client
