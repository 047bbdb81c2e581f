"""Fixtures that several parts share."""

from __future__ import annotations

import pytest

from agentrl.rollout.renderer import Renderer
from agentrl.train.tiny import build_tokenizer


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """A renderer with the tiny model's template over a byte-level tokenizer."""
    return Renderer(build_tokenizer(["Say red for task 0.", '{"name": "repeat", "arguments": {"text": "']))
