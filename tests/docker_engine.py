"""A real Docker engine with the image of `make system-deps`: the one that the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

IMAGE = "agentrl-test:1"


def need_docker() -> None:
    """Skip the test where there is no engine; but where changes are judged, fail."""
    missing = _missing()
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"{missing}: make system-deps")
    if missing:
        pytest.skip(f"{missing}: make system-deps")


def _missing() -> str | None:
    try:
        with docker.APIClient(version="auto") as client:
            client.inspect_image(IMAGE)
    except ImageNotFound:
        return f"the engine has no image {IMAGE}"
    except DockerException as error:
        return f"no Docker engine: {error}"
    return None


@contextmanager
def real_engine() -> Iterator[docker.APIClient]:
    """The engine, to look at what it holds."""
    need_docker()
    with docker.APIClient(version="auto") as client:
        yield client
