"""A box for the tools, of each backend that this machine can start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl import plugins
from agentrl.sandbox import Sandbox, SandboxBackend, SandboxSpec

OPTIONS = {"local": {"unsafe": True}, "bubblewrap": {}}


@pytest.fixture(params=list(OPTIONS))
async def box(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    kind = plugins.sandbox(request.param)
    backend: SandboxBackend = kind(kind.Options.model_validate(OPTIONS[request.param]), run="test")
    if missing := (await backend.preflight()).missing:
        pytest.skip(missing[0])
    box = await backend.start(SandboxSpec())
    yield box
    await box.stop()
    await backend.close()
