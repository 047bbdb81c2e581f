"""One command, its supervisor, everything that it starts, and the pipes to it."""

from __future__ import annotations

import errno
import os
import select
import signal
import time

from agentrl.sandboxes.channel.inside.processes import NOTHING_LEFT, STATUS, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentrl.sandboxes.channel.inside.server import Server

READ_BYTES = 1 << 16
DRAIN_S = 0.2
"""For what a command's children still print after its end."""
KILL_S = 2.0
"""For a supervisor to end what is below it; then it is killed itself."""
NUM_COMMANDS = 200
"""At once, with at most five files each."""


class Tree:
    """A command with its supervisor and everything that it starts.

    Its owner is told by `output(stream, data)`, `mark(data)` and, when nothing of it is left, `gone(exit_code)`.
    """

    def __init__(self, server: Server, command: dict[str, Any], owner: Any, *, is_shell: bool) -> None:
        """Raises OSError where there can't be more processes."""
        if len(server.trees) >= NUM_COMMANDS:
            raise OSError(errno.EAGAIN, f"{NUM_COMMANDS} commands run already")
        self.server, self.owner = server, owner
        self.exit_code: int | None = None
        self.deadline: float | None = None
        self.drain_until: float | None = None
        self.kill_at: float | None = None
        self.timed_out = False
        self.pending = bytearray()
        self.is_closing = False
        self.is_gone = False
        self.stdin: int | None
        launch = server.launch({**command, "is_shell": is_shell})
        self.pid, self.stdin, self.status = launch.pid, launch.stdin, launch.status
        self.outputs = {file: stream for stream, file in enumerate(launch.outputs)}
        self.marks = launch.outputs[1] if is_shell else None
        if self.marks is not None:
            del self.outputs[self.marks]
        self._watch()

    def _watch(self) -> None:
        for file in (self.stdin, self.status, self.marks, *self.outputs):
            if file is not None:
                os.set_blocking(file, False)
        for file in self.outputs:
            self.server.watch(file, select.POLLIN, self._on_output)
        if self.marks is not None:
            self.server.watch(self.marks, select.POLLIN, self._on_mark)
        self.server.watch(self.status, select.POLLIN, self._on_status)
        self.server.trees[self.pid] = self

    def write(self, data: bytes, *, then_close: bool = False) -> None:
        """To its stdin; what it doesn't read is dropped at its end."""
        self.pending += data
        self.is_closing |= then_close
        if self.stdin is not None:
            self.server.watch(self.stdin, select.POLLOUT, self._on_stdin)

    def kill(self) -> None:
        """End it and everything that it started; `gone` follows."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + KILL_S
            send_signal(self.pid, signal.SIGTERM)
            send_signal(self.pid, signal.SIGCONT)  # somebody inside may have stopped it

    def drain(self) -> None:
        """Take what lies in the pipes, and no more than they can hold."""
        for file in list(self.outputs):
            for _ in range(16):
                if not self._on_output(file):
                    break

    def next_time(self) -> float:
        return min([t for t in (self.deadline, self.drain_until, self.kill_at) if t is not None], default=float("inf"))

    def on_time(self, now: float) -> None:
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = float("inf")
            send_signal(self.pid, signal.SIGKILL)
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.timed_out = self.exit_code is None
            self.kill()
        if self.drain_until is not None and now >= self.drain_until:
            self.drain_until = None
            self.kill()

    def _on_stdin(self, file: int) -> None:
        try:
            del self.pending[: os.write(file, self.pending[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it doesn't read any more
            self.pending.clear()
            self.is_closing = True
        if not self.pending:
            self.server.unwatch(file)
            if self.is_closing:
                os.close(file)
                self.stdin = None

    def _on_output(self, file: int) -> bool:
        try:
            data = os.read(file, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self.owner.output(self.outputs[file], data)
            return True
        self.server.close(file)
        del self.outputs[file]
        if not self.outputs and self.exit_code is not None:
            self.kill()
        return False

    def _on_mark(self, file: int) -> None:
        data = os.read(file, READ_BYTES)
        if data:
            self.owner.mark(data)
        else:
            self.server.close(file)
            self.marks = None

    def _on_status(self, file: int) -> None:
        data = os.read(file, STATUS.size)
        told = STATUS.unpack(data)[0] if data else NOTHING_LEFT
        if told != NOTHING_LEFT:
            self.exit_code = told
            self.drain_until = time.monotonic() + DRAIN_S
            if not self.outputs:
                self.kill()
            return
        self.deadline, self.drain_until, self.kill_at = None, None, float("inf")
        if not data:  # its process id may be another's from now on
            self.server.end(self.pid)
            self.server.close(self.status)
        if not self.is_gone:
            self.is_gone = True
            self._finish()

    def _finish(self) -> None:
        self.drain()
        for open_file in (self.stdin, self.marks, *self.outputs):
            if open_file is not None:
                self.server.close(open_file)
        self.stdin, self.marks, self.outputs = None, None, {}
        # A supervisor that couldn't tell was killed, and only the command could do that.
        self.owner.gone(128 + signal.SIGKILL if self.exit_code is None else self.exit_code)
