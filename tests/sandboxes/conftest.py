"""Backends that this machine can run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions
from tests.boxes import need_bubblewrap


@pytest.fixture(scope="session")
def _bubblewrap_runs() -> None:
    asyncio.run(need_bubblewrap())


@pytest.fixture
async def bubblewrap(_bubblewrap_runs: None) -> AsyncIterator[BubblewrapBackend]:
    """The backend, with no box left at the end."""
    backend = BubblewrapBackend(BubblewrapOptions(), run="test")
    yield backend
    await backend.close()
