"""Stopping in an orderly way: what must not be cut in two, and who works on a run."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, ConfigError

T = TypeVar("T")
LOCK_FILE = "run.lock"
LOOK_S = 1.0
"""Seconds between looks at another process."""


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


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, which run at once. Where one fails the others are cancelled, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def watched(failure_of: Callable[[], AgentRLError | None]) -> AsyncIterator[None]:
    """End the block with the error of another process that has died (a rank, an engine), also while nothing is asked
    of it."""
    body = asyncio.current_task()
    assert body is not None
    failure: list[AgentRLError] = []

    async def look() -> None:
        while not failure:
            await asyncio.sleep(LOOK_S)
            if error := failure_of():
                failure.append(error)
                body.cancel()

    task = asyncio.create_task(look())
    try:
        yield
    except asyncio.CancelledError:
        if failure and body.uncancel() == 0:
            raise failure[0] from None
        raise
    finally:
        task.cancel()


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
