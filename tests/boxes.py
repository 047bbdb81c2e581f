"""A real box for a test: of bubblewrap where this machine can start them, else of `local`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentrl.config_sandbox import SandboxConfig
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.boxes import CheckBoxes, NoBox

CONFIGS = (SandboxConfig(backend="bubblewrap"), SandboxConfig(backend="local", options={"unsafe": True}))


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
