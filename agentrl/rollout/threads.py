"""Plugin code at arm's length: plain functions run in threads, and nothing that it raises gets past the rollout.

A thread can't be killed. One that outlives its time limit is abandoned: it is a daemon, so it blocks neither the
others nor the exit, and it is counted for as long as it lives (R4).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.errors import ToolFault


class Threads:
    """Calls functions of plugins. A rollout waits for one call at a time, so its concurrency bounds the threads."""

    def __init__(self, max_abandoned: int) -> None:
        self.max_abandoned = max_abandoned
        self._abandoned: list[threading.Thread] = []

    @property
    def num_abandoned(self) -> int:
        """Threads that were given up and still run."""
        self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
        return len(self._abandoned)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function` returns: a coroutine function runs in the event loop, any other in a thread of its own.

        The time limit is the caller's: when it cancels, the thread is abandoned. Raises what `function` raises (see
        `contained`), and ToolFault where too many threads hang.
        """
        with contained():
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            value = await self._in_thread(lambda: function(*arguments))
            return await value if inspect.isawaitable(value) else value

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        if len(self._abandoned) > self.max_abandoned and self.num_abandoned > self.max_abandoned:
            raise ToolFault(
                f"{self.num_abandoned} threads of tools or environments hang beyond their time limits and can't be "
                f"killed; make them end by themselves, or raise limits.max_abandoned_threads"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        thread = threading.Thread(target=_deliver, args=(function, loop, future), name="plugin", daemon=True)
        thread.start()
        try:
            return await future
        except asyncio.CancelledError:
            if thread.is_alive():
                self._abandoned.append(thread)
            raise


@contextmanager
def contained() -> Iterator[None]:
    """Turn what would end the process, or look like a cancellation, into plain errors."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("it raised CancelledError, but nobody cancelled it") from error
    except SystemExit as error:
        raise RuntimeError(f"it called exit({error.code!r})") from error


def _deliver(function: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> None:
    value: Any = None
    error: Exception | None = None
    try:
        value = function()
    except StopIteration as raised:  # a future can't hold it
        error = RuntimeError(f"it raised {raised!r}")
    except Exception as raised:
        error = raised
    except BaseException as raised:  # SystemExit and the like must not leave the caller waiting
        error = RuntimeError(f"it raised {type(raised).__name__}: {raised}")

    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
