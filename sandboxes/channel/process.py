"""A box's server as a child process of ours: its start, its last words, its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandboxes.channel.client import Client
from agentrl.visible import one_line

LOGGER = logging.getLogger(__name__)
MAX_WORDS_CHARACTERS = 500
"""Of what it wrote to stderr."""
STOP_S = 5.0
"""To end by itself once we hang up; then it is killed."""


class BoxProcess:
    """The first process of a box, as we see it, and the channel to the server in it."""

    def __init__(self, process: Process, client: Client) -> None:
        self.client = client
        self._process = process
        self._words = asyncio.create_task(_last_words(process))

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        name: str,
        timeout_s: float | None = None,
        pass_fds: Sequence[int] = (),
        on_spawned: Callable[[], None] = lambda: None,
    ) -> BoxProcess:
        """`timeout_s`: None where the caller's own limit holds.

        `on_spawned`: called when the process is there, with the files that it inherits.

        Raises SandboxError with what it wrote where it ends at once or isn't ready in time.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={"PATH": os.defpath + ":/usr/sbin:/sbin"},
                pass_fds=pass_fds, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            why = f"box {name}: {argv[0]} can't be started: {error.strerror}"
            raise SandboxError(why, SandboxFault.HOST_FULL) from error
        on_spawned()
        assert process.stdin is not None and process.stdout is not None
        box = cls(process, Client(process.stdout, process.stdin, name=name))
        try:
            await box.client.ready(timeout_s)
        except TimeoutError:
            said = await box.stop()
            raise SandboxError(f"box {name} wasn't ready within {timeout_s:g} s{said}", SandboxFault.START) from None
        except SandboxError:
            raise SandboxError(f"box {name} didn't start{await box.stop()}", SandboxFault.START) from None
        except BaseException:
            LOGGER.warning("box %s was given up before it was ready%s", name, await box.stop())
            raise
        return box

    async def stop(self) -> str:
        """End it. What it wrote to stderr, after a colon, or nothing. Safe to call twice."""
        await self.client.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_S)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await asyncio.wait([self._words], timeout=1.0)
        said = self._words.result() if self._words.done() else ""
        # Without this, pipes stay open as long as something holds their other ends.
        self._process._transport.close()  # type: ignore[attr-defined]
        return f": {said}" if said else ""


async def _last_words(process: Process) -> str:
    """The end of what it writes to stderr; the rest is read and dropped, so that it never waits for us."""
    assert process.stderr is not None
    kept = b""
    while part := await process.stderr.read(65536):
        kept = (kept + part)[-4 * MAX_WORDS_CHARACTERS :]
    return one_line(kept.decode("utf-8", "replace"))[-MAX_WORDS_CHARACTERS:]
