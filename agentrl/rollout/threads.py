"""Plugin code at arm's length: plain functions run in threads, and nothing that they raise gets past the rollout.

A thread can't be killed. A call that outlives its time limit is abandoned: its thread is a daemon, so it blocks neither
the others nor the exit, and it is counted for as long as it runs (R4).

Starting a thread for each call costs 0.3 ms where hundreds start at once, so workers are kept for a second and quick
calls share a few of them; a call that no worker has begun after `PATIENCE_S` gets a worker of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agentrl.errors import ToolFault

PATIENCE_S = 0.02
_IDLE_S = 1.0
"""After this long without work a worker ends."""


class _Call:
    """One call of a plain function."""

    __slots__ = ("error", "function", "future", "is_done", "is_started", "value")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.function = function
        self.future = future
        self.value: Any = None
        self.error: Exception | None = None
        self.is_started = False
        self.is_done = False

    def run(self) -> None:
        try:
            self.value = self.function()
        except StopIteration as raised:  # a future can't hold it
            self.error = RuntimeError(f"it raised {raised!r}")
        except Exception as raised:
            self.error = raised
        except BaseException as raised:  # SystemExit and the like must not leave the caller waiting
            self.error = RuntimeError(f"it raised {type(raised).__name__}: {raised}")
            self.error.__cause__ = raised
        self.is_done = True

    def settle(self) -> None:
        """Wake the caller; in its event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class Threads:
    """Calls functions of plugins, from one event loop. A rollout waits for one call at a time, or for a
    few of one reply, so the concurrency of rollouts bounds the threads."""

    def __init__(self, max_abandoned: int) -> None:
        self.max_abandoned = max_abandoned
        self._abandoned: list[_Call] = []
        self._waiting: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._done: deque[_Call] = deque()
        self._lock = threading.Lock()
        self._num_workers = self._num_put = self._num_taken = self._num_put_before = 0
        self._is_watching = self._is_waking = False

    @property
    def num_abandoned(self) -> int:
        """Calls that were given up and still run."""
        self._abandoned = [call for call in self._abandoned if not call.is_done]
        return len(self._abandoned)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function` returns: a coroutine function runs in the event loop, any other in a thread.

        The time limit is the caller's: when it cancels, the call is abandoned. Raises what `function` raises (see
        `contained`), and ToolFault where too many calls hang.
        """
        with contained():
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            context = contextvars.copy_context()  # log lines of plugins say where in the run they are
            value = await self._in_thread(lambda: context.run(function, *arguments))
            return await value if inspect.isawaitable(value) else value

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        if len(self._abandoned) > self.max_abandoned and self.num_abandoned > self.max_abandoned:
            raise ToolFault(
                f"{self.num_abandoned} calls of tools or environments hang beyond their time limits and can't be "
                f"killed; make them end by themselves, or raise limits.max_abandoned_threads"
            )
        loop = asyncio.get_running_loop()
        call = _Call(function, loop.create_future())
        self._put(call, loop)
        try:
            return await call.future
        except asyncio.CancelledError:
            if call.is_started and not call.is_done:
                self._abandoned.append(call)
            raise

    def _put(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        self._num_put += 1
        self._waiting.put(call)
        if self._num_workers == 0:
            self._start_worker(loop)
        if not self._is_watching:
            self._is_watching = True
            self._num_put_before = self._num_taken
            loop.call_later(PATIENCE_S, self._watch, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start a worker for each call that was put before the last look and that nobody has begun."""
        for _ in range(self._num_put_before - self._num_taken):
            self._start_worker(loop)
        self._num_put_before = self._num_put
        self._is_watching = self._num_taken < self._num_put
        if self._is_watching:
            loop.call_later(PATIENCE_S, self._watch, loop)

    def _start_worker(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._num_workers += 1
        threading.Thread(target=self._work, args=(loop,), name="plugin", daemon=True).start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                call = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    self._num_workers -= 1
                return
            with self._lock:
                self._num_taken += 1
            if call.future.cancelled():
                continue
            call.is_started = True
            call.run()
            self._deliver(call, loop)

    def _deliver(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        """Many results wake the event loop once: each wake-up is a system call that gives the lock away."""
        self._done.append(call)
        if self._is_waking:
            return
        self._is_waking = True
        try:
            loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _settle(self) -> None:
        self._is_waking = False
        while self._done:
            self._done.popleft().settle()


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
