"""A box in the hands of one episode or grader, until it is stopped or its time is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import DEFAULT_FILE_BYTES, DEFAULT_OUTPUT_BYTES, Command, ExecResult, Sandbox, Session

LOGGER = logging.getLogger(__name__)
STOP_S = 10.0
"""How long an episode waits for the end of its box; the end goes on behind it (G04)."""
CLOSE_S = 60.0
"""How long its shells may take to end; killing what an agent started is quick, but this machine may be busy."""
GIVE_UP_S = 60.0
"""After this a box that doesn't end is left to the backend, which ends it by its lifetime or its sweep."""
MAX_OVERRUN_S = 60.0
"""Who holds a box for longer than it said, by more than this, is gone (G13)."""


class LentBox(Sandbox):
    """What the backend started, with an owner who gives it back. `stop` ends it for good: it is never lent again."""

    def __init__(self, box: Sandbox, *, hold_s: float, on_end: Callable[[], None]) -> None:
        """`hold_s`: for how long at most; `on_end`: called once, when what it took is free again."""
        self._box = box
        self._on_end = on_end
        self._sessions: list[Session] = []
        self._ending: asyncio.Task[None] | None = None
        self._expiry = asyncio.get_running_loop().call_later(hold_s + MAX_OVERRUN_S, self._expire, hold_s)

    async def exec(
        self,
        command: Command,
        *,
        timeout_s: float,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        return await self._box.exec(
            command,
            timeout_s=timeout_s,
            cwd=cwd,
            environment=environment,
            stdin=stdin,
            max_output_bytes=max_output_bytes,
        )

    async def session(self) -> Session:
        session = await self._box.session()
        self._sessions.append(session)
        return session

    async def close_sessions(self) -> None:
        """End every shell and what it started, so that nothing of the agent runs on while its work is collected (G04).

        Raises SandboxError where the box is gone or doesn't answer.
        """
        try:
            async with asyncio.timeout(CLOSE_S):
                for session in self._sessions:
                    await session.close()
        except TimeoutError:
            raise SandboxError(f"its shells didn't end within {CLOSE_S:g} s", SandboxFault.CHANNEL) from None

    async def read(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        return await self._box.read(path, max_bytes=max_bytes)

    async def read_tree(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        return await self._box.read_tree(path, max_bytes=max_bytes)

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        await self._box.write(path, content, executable=executable)

    async def write_tree(self, path: str, archive: bytes) -> None:
        await self._box.write_tree(path, archive)

    async def is_alive(self) -> bool:
        return await self._box.is_alive()

    async def stop(self) -> None:
        """End the box; where that takes too long it goes on behind whoever waits here. Never raises."""
        self._expiry.cancel()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.wait({self._ending}, timeout=STOP_S)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await self._box.stop()
        except Exception as error:
            LOGGER.warning("a box could not be stopped, it is left to its lifetime: %r", error)
        finally:
            self._on_end()

    def _expire(self, hold_s: float) -> None:
        LOGGER.warning("a box is held for longer than %g s: whoever has it is gone, it is ended", hold_s)
        with suppress(RuntimeError):  # the loop is closing
            self._ending = self._ending or asyncio.ensure_future(self._end())
