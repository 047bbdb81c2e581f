"""`agentrl sandbox pull NAME IMAGE…`: get images ahead of the run that needs them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from agentrl.cli.common import run_async
from agentrl.errors import SandboxError
from agentrl.visible import one_line

if TYPE_CHECKING:
    from agentrl.sandbox import SandboxBackend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a sandbox whose boxes are made of images, e.g. docker")
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="images, and options such as sandbox.options.mirror=…"
    )


def run(backend: SandboxBackend, images: list[str]) -> int:
    """A line for each image, and exit code 1 where one isn't to be had; the others are got all the same."""
    num_here = run_async(_pull(backend, images))
    print(f"{num_here} of {len(images)} images are here")
    return 0 if num_here == len(images) else 1


async def _pull(backend: SandboxBackend, images: list[str]) -> int:
    try:
        return sum([await _pull_one(backend, image) for image in images])
    finally:
        await backend.close()


async def _pull_one(backend: SandboxBackend, image: str) -> bool:
    try:
        await backend.pull(image, _tell)
    except SandboxError as error:
        _tell(str(error))
        return False
    _tell(f"{image}: here")
    return True


def _tell(line: str) -> None:
    print(one_line(line), flush=True)
