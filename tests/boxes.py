"""A real box for a test: of bubblewrap where this machine can start them, else of `local`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentrl.config_sandbox import SandboxConfig
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions
from agentrl.testing.boxes import CheckBoxes, NoBox

CONFIGS = (SandboxConfig(backend="bubblewrap"), SandboxConfig(backend="local", options={"unsafe": True}))


async def need_bubblewrap() -> None:
    """Skip the test where no box can be started; but where changes are judged, fail."""
    missing = (await BubblewrapBackend(BubblewrapOptions(), run="probe").preflight()).missing
    if missing:
        assert os.environ.get("CI") != "true", missing
        pytest.skip(f"bubblewrap can't start boxes here: {missing[0]}")


@asynccontextmanager
async def best_box(spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    boxes, box = CheckBoxes(CONFIGS[0]), None
    try:
        box = await boxes.start(spec, hold_s=600)
    except NoBox:
        boxes = CheckBoxes(CONFIGS[1])
        box = await boxes.start(spec, hold_s=600)
    assert box is not None
    try:
        yield box
    finally:
        await box.stop()
        await boxes.close()
