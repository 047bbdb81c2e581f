"""A box for the tools."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandbox import Sandbox, SandboxSpec
from tests.boxes import best_box


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    async with best_box(SandboxSpec()) as box:
        yield box
