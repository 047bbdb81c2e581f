"""What an episode leaves behind: threads, child processes and temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GRACE_S = 2.0
"""How long threads and processes may take to end."""


@contextmanager
def watched() -> Iterator[list[str]]:
    """Fills the list with what the block left behind. Temporary files go to a folder of their own meanwhile."""
    found: list[str] = []
    threads, children = set(threading.enumerate()), set(_children())
    folder = Path(tempfile.mkdtemp(prefix="agentrl-check-"))
    try:
        with _temporary_files_in(folder):
            yield found
            _wait_until_ended(threads, children)
        found += [f"thread {thread.name!r}" for thread in _new_threads(threads)]
        found += [f"child process {pid}" for pid in _children() if pid not in children]
        found += [f"temporary file {path.name}" for path in sorted(folder.iterdir())]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


def _wait_until_ended(threads: set[threading.Thread], children: set[int]) -> None:
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and (_new_threads(threads) or set(_children()) - children):
        time.sleep(0.02)


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]


def _children() -> list[int]:
    """Processes whose parent is this one; none where the system has no /proc."""
    lists = Path("/proc/self/task").glob("*/children")
    return sorted({int(pid) for path in lists for pid in _read(path).split()})


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread ended
        return ""
