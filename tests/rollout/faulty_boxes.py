"""Boxes of `agentrl.testing.faulty_sandbox`, registered as a plugin would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.config_sandbox import SandboxConfig
from agentrl.rollout.boxes import Boxes
from agentrl.testing.faulty_sandbox import FaultySandboxes

ENTRY = "[agentrl.sandboxes]\nfaulty = agentrl.testing.faulty_sandbox:FaultySandboxes\n"
EAGER: dict[str, Any] = {"warm": 0, "starts_per_second": 10_000.0}


def register(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package that brings the backend `faulty` on the import path."""
    info = folder / "faulty_sandboxes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-sandboxes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    monkeypatch.syspath_prepend(folder)


def sandbox_config(plan: dict[str, Any] | None = None, **values: Any) -> SandboxConfig:
    """Of the faulty backend with a plan."""
    return SandboxConfig.model_validate({"backend": "faulty", "options": plan or {}, **EAGER, **values})


@asynccontextmanager
async def open_boxes(
    plan: dict[str, Any] | None = None, tell: Callable[..., None] = lambda kind, **values: None, **values: Any
) -> AsyncIterator[tuple[Boxes, FaultySandboxes]]:
    """Boxes and the backend behind them; at the end nothing lives."""
    async with Boxes(sandbox_config(plan, **values), run="test", tell=tell) as boxes:
        backend = await boxes.backends.get("faulty")
        assert isinstance(backend, FaultySandboxes)
        yield boxes, backend
    assert backend.num_living == 0
    assert (boxes.room.num_boxes, boxes.room.memory_bytes, boxes.room.num_waiting) == (0, 0, 0)


async def until(condition: Callable[[], bool], wait: Callable[[float], Awaitable[None]], limit_s: float = 20.0) -> None:
    """Wait for something that comes by itself."""
    for _ in range(int(limit_s / 0.01)):
        if condition():
            return
        await wait(0.01)
    raise AssertionError("it didn't come")
