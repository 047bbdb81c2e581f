"""Fixtures that several parts share."""

from __future__ import annotations

from collections.abc import Generator
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was logged travels between processes as UTF-8, which has no lone surrogates."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """A renderer with the tiny model's template over a byte-level tokenizer."""
    return Renderer(build_tokenizer(["Say red for task 0.", '{"name": "repeat", "arguments": {"text": "']))
