"""Disks that are small or read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of its own in memory, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, *options: str) -> None:
        subprocess.run(["mount", "-o", ",".join(options), str(self.folder)], check=True)

    def fill(self) -> Path:
        """Write a file until nothing is left."""
        ballast = self.folder / "ballast"
        with suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 512)
        return ballast


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Skips the test where file systems can't be mounted (that takes root)."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
