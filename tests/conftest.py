"""Fixtures that several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.rollout.renderer import Renderer
from agentrl.train.tiny import build_tokenizer

VLLM = Path(__file__).parent / "vllm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where two processes share the tests, a file's stay together, and so do all that use the vLLM server.

    Those go first: they take longest, and the other process has enough to do meanwhile.
    """
    items.sort(key=lambda item: item.path.parent != VLLM)
    for item in items:
        item.add_marker(pytest.mark.xdist_group("vllm" if item.path.parent == VLLM else str(item.path)))


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """A renderer with the tiny model's template over a byte-level tokenizer."""
    return Renderer(build_tokenizer(["Say red for task 0.", '{"name": "repeat", "arguments": {"text": "']))
