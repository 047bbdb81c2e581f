"""What takes a run's boxes away when the run itself can't any more: it was killed, or its machine ran out of memory.

    run ──pipe── python -m agentrl.rollout.watchman

The run writes one JSON line for each backend that it opens. When it ends in order it writes an empty line, and the
watchman goes. When it dies the pipe closes; the watchman then has each backend sweep what dead runs left, and goes. It
leads a session of its own, so that what is sent to the run's terminal or group doesn't reach it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl.sandbox import SandboxOptions

LOOK_S = 1.0
"""Between looks whether the run lives: a child that it forked may hold the pipe open."""
MAX_SWEEPS = 10
"""Removing what is busy may fail at first (G06)."""
PAUSE_S = 1.0
DISMISS_S = 5.0


class Watchman:
    """The run's end of the pipe. The process starts with the first backend that it has to guard."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None: it wasn't needed yet, or was dismissed."""
        return None if self._process is None else self._process.pid

    def guard(self, backend: str, options: SandboxOptions) -> None:
        """From now on this run's boxes of a backend are taken away when it dies."""
        self._process = self._process or self._start()
        # By the pipe, for options may hold what no command line should show.
        self._write(json.dumps({"backend": backend, "options": options.model_dump(mode="json")}))

    def dismiss(self) -> None:
        """The run has ended in order: there is nothing to take away."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError), process.stdin:
            process.stdin.write(b"\n")
        try:
            process.wait(DISMISS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "agentrl.rollout.watchman", self.run, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
        )  # fmt: skip

    def _write(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed it: the sweep of the next start does its work
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


# --------------------------------------------------------------------------------------------------- the watchman


def watch(run: str, parent: int) -> None:
    """Until the run ends; then take away what it left, if it didn't end in order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for line in _read_until_dead(parent):
        _sweep(run, **line)


def _read_until_dead(parent: int) -> list[dict[str, Any]]:
    """What the run said before it died; nothing where it ended in order."""
    os.set_blocking(sys.stdin.fileno(), False)
    text, is_dead = b"", False
    while not is_dead:
        select.select([sys.stdin], [], [], LOOK_S)
        is_dead = os.getppid() != parent
        with suppress(BlockingIOError):
            while part := os.read(sys.stdin.fileno(), 65536):
                text += part
            time.sleep(0.01)  # the pipe closes just before the process is gone
        if (b"\n" + text).endswith(b"\n\n"):
            return []
    return [json.loads(line) for line in text.splitlines()]


def _sweep(run: str, backend: str, options: dict[str, Any]) -> None:
    """Again until nothing is found twice: a box that was being made may come late, and so may the end of the run."""
    from agentrl import plugins

    num_empty = 0
    for _ in range(MAX_SWEEPS):
        with suppress(Exception):  # nobody is there to hear it; the next start's sweep says what it can't do
            kind = plugins.sandbox(backend)
            found = asyncio.run(kind(kind.Options.model_validate(options), run=run).sweep())
            num_empty = 0 if found else num_empty + 1
            if num_empty == 2:
                return
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    watch(sys.argv[1], int(sys.argv[2]))
