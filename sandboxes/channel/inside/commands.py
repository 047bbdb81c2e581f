"""Commands and shells: what is kept of their output, and what the host is told."""

from __future__ import annotations

import errno
import time

from agentrl.sandboxes.channel.inside.processes import MARK_FILE, as_bytes
from agentrl.sandboxes.channel.inside.tree import READ_BYTES, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentrl.sandboxes.channel.inside.server import Server

IDLE_BYTES = 1 << 16
"""Of what background jobs print while no command runs in their shell."""


class Capture:
    """The first and the last bytes of a stream, half of the cap each, and how many there were."""

    def __init__(self, cap: int) -> None:
        self.half = (cap + 1) // 2
        self.head, self.tail, self.num_bytes = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        self.num_bytes += len(data)
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 2 * self.half + READ_BYTES:
            self._trim()

    def parts(self) -> tuple[bytes, int, int]:
        """(what is kept, length of the head in it, how many bytes are left out after the head)."""
        self._trim()
        kept = bytes(self.head + self.tail)
        return kept, len(self.head), self.num_bytes - len(kept)

    def _trim(self) -> None:
        del self.tail[: max(0, len(self.tail) - self.half)]


class Run:
    """One command's output and its reply."""

    def __init__(self, server: Server, number: int, cap: int, num_streams: int) -> None:
        self.server, self.number, self.started = server, number, time.monotonic()
        self.streams = [Capture(cap) for _ in range(num_streams)]

    def finish(self, exit_code: int, *, timed_out: bool = False, shell_ended: bool = False) -> None:
        self.server.running.pop(self.number, None)
        parts = [stream.parts() for stream in self.streams]
        told = {
            "exit_code": exit_code,
            "timed_out": timed_out,
            "shell_ended": shell_ended,
            "seconds": time.monotonic() - self.started,
            "num_out_of_memory": self.server.num_out_of_memory(),
            "streams": [[len(kept), head, left_out] for kept, head, left_out in parts],
        }
        self.server.reply(self.number, told, b"".join(kept for kept, _, _ in parts))


class Exec:
    """A command of its own."""

    def __init__(self, server: Server, number: int, request: dict[str, Any], stdin: bytes) -> None:
        self.run = Run(server, number, request["max_output_bytes"], 2)
        self.tree = Tree(server, server.command(request), self, is_shell=False)
        self.tree.deadline = self.run.started + request["timeout_s"]
        self.tree.write(stdin, then_close=True)
        server.running[number] = self.tree

    def output(self, stream: int, data: bytes) -> None:
        self.run.streams[stream].add(data)

    def gone(self, exit_code: int) -> None:
        self.run.finish(exit_code, timed_out=self.tree.timed_out)


class Shell:
    """A shell that reads its commands from a pipe. Each is one quoted word for eval, so it can't reach the next."""

    def __init__(self, server: Server, request: dict[str, Any]) -> None:
        self.server, self.request = server, request
        self.tree: Tree | None = None
        self.run: Run | None = None
        self.ended_by: int | None = None
        self.idle = Capture(IDLE_BYTES)
        self.told = b""
        self.has_ended = False

    def start_run(self, number: int, request: dict[str, Any]) -> None:
        """Raises OSError where a run is going on, or no shell can be started."""
        if self.run is not None:
            raise OSError(errno.EBUSY, "a command runs in this session")
        if self.tree is None:
            command = self.server.command({**self.request, "argv": [self.server.shell, "-s"]})
            self.tree = Tree(self.server, command, self, is_shell=True)
        self.run = Run(self.server, number, request["max_output_bytes"], 1)
        self.run.streams[0].add(self.idle.parts()[0])
        self.idle, self.told = Capture(IDLE_BYTES), b""
        self.tree.deadline = self.run.started + request["timeout_s"]
        self.server.running[number] = self.tree
        quoted = as_bytes("'" + request["line"].replace("\0", "").replace("'", "'\\''") + "'")
        # `command`: or a syntax error ends a shell that isn't bash. The empty line: after such an error, bash's parser
        # needs it to see the brace. The braces below: `set -x` would show what is in them.
        self.tree.write(b"{ command eval %s\n} </dev/null %d>&-\n\n" % (quoted, MARK_FILE))
        self.tree.write(b"{ command printf '%%s\\n' \"$?\" >&%d; } 2>/dev/null\n" % MARK_FILE)

    def end(self, number: int) -> None:
        """End the shell and what it started; the reply comes when they are gone."""
        self.ended_by = number
        if self.tree is None:
            self.server.reply(number, {})
        else:
            self.tree.kill()

    def output(self, stream: int, data: bytes) -> None:
        (self.run.streams[0] if self.run else self.idle).add(data)

    def mark(self, data: bytes) -> None:
        self.told = (self.told + data)[-100:]
        if self.run is not None and self.tree is not None and self.told.endswith(b"\n"):
            code = self.told.split()[-1:]
            self.tree.drain()
            self.tree.deadline = None
            run, self.run = self.run, None
            # A command can reach the mark's pipe. What it writes there must not look like a box that is broken.
            is_code = bool(code) and code[0].isdigit() and len(code[0]) <= 3
            run.finish(min(int(code[0]), 255) if is_code else 1, shell_ended=self.has_ended)
            self.has_ended = False

    def gone(self, exit_code: int) -> None:
        tree, run, self.tree, self.run = self.tree, self.run, None, None
        self.has_ended = run is None  # else this reply tells it, not the next
        if run is not None:
            run.finish(exit_code, timed_out=tree is not None and tree.timed_out, shell_ended=True)
        if self.ended_by is not None:
            self.server.reply(self.ended_by, {})
