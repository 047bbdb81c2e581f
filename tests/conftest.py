"""Fixtures that several parts share, and how several processes share the tests."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import settings

from agentrl.rollout.renderer import Renderer
from agentrl.train.tiny import build_tokenizer

settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")  # who is slow because of others isn't wrong

TOGETHER = {
    "tests/vllm": "vllm",  # one server
    "tests/replay": "replay",  # one run that was trained
    "tests/sandboxes/test_docker.py": "docker",  # one engine's sweeps, which are counted
    "tests/sandboxes/test_docker_images.py": "docker",
    "tests/test_soak.py": "docker",
}
"""Folders and files whose tests stay in one process; every other file is a group of its own."""
LONGEST = ("vllm", "docker", "replay")
"""Groups that begin first, so that the processes end at about the same time."""


def group_of(nodeid: str) -> str:
    """The name of the group that a test belongs to."""
    file = PurePosixPath(nodeid.partition("::")[0])
    named = (TOGETHER.get(str(place)) for place in (file, *file.parents))
    return next(filter(None, named), str(file))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(group_of(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups go to whoever is free. xdist's own `loadgroup` writes them into ids, which pytest 9 no longer lets it."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # the order is ours

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return InGroups(config, log)


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
