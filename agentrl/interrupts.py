"""Stopping in an orderly way: what must not be cut in two, and who works on a run."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import ConfigError

T = TypeVar("T")
LOCK_FILE = "run.lock"


class Terminated(BaseException):
    """SIGTERM came, and everything was written and closed."""


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end, even where the caller is cancelled meanwhile; only then the cancellation goes on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works on a run. The system lets go of the lock when the process dies, however it dies.

    Raises ConfigError where another process holds it.
    """
    with (folder / LOCK_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise ConfigError(f"{folder}: {owner} is at work on this run; wait for it or stop it first") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Does a process work on the run in this folder?"""
    try:
        with (folder / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True
