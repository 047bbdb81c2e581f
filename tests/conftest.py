"""Fixtures that several parts share, and how two processes share the tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from agentrl.rollout.renderer import Renderer
from agentrl.train.tiny import build_tokenizer

TESTS = Path(__file__).parent
TOGETHER = {
    "vllm": "vllm",  # one server
    "replay": "replay",  # one run that was trained
    "sandboxes/test_docker.py": "docker",  # sweeps of one engine, which are counted
    "sandboxes/test_docker_images.py": "docker",
    "test_soak.py": "docker",
}
"""Files and folders that stay in one process, whatever else does; other files are each for itself."""
LONGEST = ("vllm", "docker", "replay")
"""Groups that begin first, so that the processes end at about the same time."""


def group_of(path: Path) -> str:
    """The tests that share a process with those of a file, by a name."""
    relative = path.relative_to(TESTS)
    named = (TOGETHER.get(place.as_posix()) for place in (relative, *relative.parents))
    return next(filter(None, named), relative.as_posix())


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
    order = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(group_of(item.path), len(order)))


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
