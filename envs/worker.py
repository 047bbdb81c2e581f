"""A thread for calls that block: a library's step, or a reward function that isn't async.

Such calls can't be killed. One that outlives its time limit is abandoned: it is counted, it stops neither the others
nor the end of the process, and past `MAX_ABANDONED` no new one starts.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
MAX_ABANDONED = 8
_abandoned: set[threading.Thread] = set()


class Worker:
    """One daemon thread; its calls run in order, all in the same thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """The function's result. Raises what it raises, and RuntimeError where too many threads hang already."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        thread = self._started()
        self._jobs.put((function, loop, future))
        try:
            return await future
        except asyncio.CancelledError:  # the time limit, or the run's end
            _abandoned.add(thread)
            raise

    def stop(self) -> None:
        """End the thread after the calls that it has."""
        self._jobs.put(None)

    def _started(self) -> threading.Thread:
        if self._thread is None:
            _check_abandoned()
            self._thread = threading.Thread(target=self._work, name="environment", daemon=True)
            self._thread.start()
        return self._thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _deliver(*job)


async def in_thread(function: Callable[[], T]) -> T:
    """Run one blocking call in a thread of its own."""
    worker = Worker()
    try:
        return await worker.run(function)
    finally:
        worker.stop()


def num_abandoned() -> int:
    """Threads that still hang in a call that nobody waits for."""
    _abandoned.difference_update([thread for thread in _abandoned if not thread.is_alive()])
    return len(_abandoned)


def _check_abandoned() -> None:
    if (number := num_abandoned()) > MAX_ABANDONED:
        raise RuntimeError(
            f"{number} calls of environments or reward functions hang beyond their time limit and can't be killed; "
            f"make them end by themselves"
        )


def _deliver(function: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    value, error = None, None
    try:
        value = function()
    except BaseException as raised:  # SystemExit and the like must not leave the caller waiting
        is_plain = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
        error = raised if is_plain else RuntimeError(f"{type(raised).__name__}: {raised}")

    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
