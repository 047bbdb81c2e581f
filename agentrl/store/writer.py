"""One writer thread per Store: many small writes become one transaction (group commit)."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from agentrl.errors import StoreError
from agentrl.store.database import Database
from agentrl.store.faults import is_collision, is_down

T = TypeVar("T")

MAX_GROUP = 256
"""Writes per transaction: bounds how long other processes wait for the write lock (about 0.1 s)."""
MAX_COLLISIONS = 10
"""How often a transaction is tried again that the database ended in favour of another process's."""


@dataclass(slots=True)
class _Write:
    work: Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Writer:
    """Runs writes in the order in which they were asked for.

    Each has its own savepoint: one that fails leaves no trace and takes no other write along. Each caller goes on
    once the transaction that holds its write is committed. Where the database itself is at fault (full, locked, gone),
    all who wait hear of it at once; later writes are tried again, but don't wait long for a lock.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._is_down = False
        """The last transaction failed because of the database itself."""

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the writer's transaction and return its result once that is durable.

        Raises StoreError (or the AgentRLError that `work` raised); then nothing of `work` was written.
        A caller that is cancelled doesn't undo its write.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._database.location}: the store is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentrl-store-writer", daemon=True)
                self._thread.start()
            self._queue.put(_Write(work, loop, future))
        return await future

    def close(self) -> None:
        """Finish what was asked for, then end the thread. Later writes raise StoreError. Can be called again."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            if group:
                try:
                    self._commit(group)
                except BaseException as error:  # nobody may be left waiting, whatever it is
                    self._fail_all(group, error)
                if self._is_down:
                    is_open &= self._take_waiting(group)
                _deliver(group)

    def _next_group(self) -> tuple[list[_Write], bool]:
        """Wait for a write and take what is there by then; False: the writer was closed."""
        group: list[_Write] = []
        write = self._queue.get()
        while write is not None:
            group.append(write)
            if len(group) == MAX_GROUP:
                return group, True
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _take_waiting(self, group: list[_Write]) -> bool:
        """Those who asked in the meantime share the group's failure; False: the writer was closed."""
        error = next(write.error for write in group if write.error is not None)
        while True:
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                return True
            if write is None:
                return False
            write.error = error
            group.append(write)

    def _commit(self, group: list[_Write], num_collisions: int = 0) -> None:
        """Try the whole group at once; where a write of it fails, again with a savepoint for each write.

        Savepoints are dear compared with small inserts and failures are rare. A work may so run twice, but at most
        one of its runs is committed.
        """
        is_begun = False
        try:
            with self._database.writing(patient=not self._is_down) as connection:
                is_begun = True
                for write in group:
                    write.result = write.work(connection)
            self._is_down = False
        except Exception as error:
            self._is_down = not is_begun or is_down(error)
            if is_collision(error) and num_collisions < MAX_COLLISIONS:
                self._commit(group, num_collisions + 1)
            elif self._is_down or len(group) == 1:
                self._fail_all(group, error)
            else:
                self._commit_singly(group)

    def _commit_singly(self, group: list[_Write], num_collisions: int = 0) -> None:
        for write in group:
            write.error = None
        try:
            with self._database.writing() as connection:
                for write in group:
                    self._attempt(connection, write)
        except Exception as error:  # no transaction, or none that could be committed
            if is_collision(error) and num_collisions < MAX_COLLISIONS:
                return self._commit_singly(group, num_collisions + 1)
            self._is_down = True
            self._fail_all(group, error)

    def _attempt(self, connection: Connection, write: _Write) -> None:
        savepoint = connection.begin_nested()
        try:
            write.result = write.work(connection)
            savepoint.commit()
        except Exception as error:
            if is_down(error) or is_collision(error):  # the database may have ended the whole transaction by itself
                raise
            savepoint.rollback()
            self._fail(write, error)

    def _fail_all(self, group: list[_Write], error: BaseException) -> None:
        for write in group:
            if write.error is None:
                self._fail(write, error)

    def _fail(self, write: _Write, error: BaseException) -> None:
        write.error = self._database.error(error)
        if write.error is not error:
            write.error.__cause__ = error


def _deliver(group: list[_Write]) -> None:
    """Wake the callers, with one call per event loop."""
    for loop in {write.loop for write in group}:
        mine = [write for write in group if write.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _settle(group: list[_Write]) -> None:
    for write in group:
        if write.future.done():  # the caller was cancelled
            continue
        if write.error is not None:
            write.future.set_exception(write.error)
        else:
            write.future.set_result(write.result)
