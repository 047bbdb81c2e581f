"""Backends that this machine can run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions


@pytest.fixture(scope="session")
def _bubblewrap_runs() -> None:
    missing = asyncio.run(BubblewrapBackend(BubblewrapOptions(), run="probe").preflight()).missing
    if missing:
        assert os.environ.get("CI") != "true", missing
        pytest.skip(f"bubblewrap can't start boxes here: {missing[0]}")


@pytest.fixture
async def bubblewrap(_bubblewrap_runs: None) -> AsyncIterator[BubblewrapBackend]:
    """The backend, with no box left at the end."""
    backend = BubblewrapBackend(BubblewrapOptions(), run="test")
    yield backend
    await backend.close()
