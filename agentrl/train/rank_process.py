"""One other rank as rank 0 sees it: a process, a socket pair to it, and a log of what it prints."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

CLOSE_WAIT_S = 10.0
"""How long a rank that was dismissed may take before it is killed."""
MAX_LOG_BYTES = 4000
"""Of the end of a dead rank's log that an error shows."""


@dataclass(frozen=True, slots=True)
class Done:
    """A rank's answer to a call: the result, or None where it isn't wanted."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank ended."""

    rank: int
    how: str
    """E.g. "failed", "was killed by SIGKILL"."""
    text: str
    """Its traceback, or the end of its log."""
    at_s: float = -math.inf
    """When, by the clock that all processes share; -inf where it could not say."""


class RankProcess:
    """A process that runs `agentrl.train.rank_main`. It has a session of its own: Ctrl-C reaches rank 0 only."""

    def __init__(self, rank: int, log: Path) -> None:
        self.rank = rank
        self._log = log
        self._failure: Failure | None = None
        self._connection, theirs = Pipe()
        with log.open("wb") as output, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agentrl.train.rank_main", str(theirs.fileno()), str(rank)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # It imports what this process would.
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Raises OSError if the process has gone."""
        self._connection.send(message)

    def result(self) -> Any:
        """Wait for the answer to a call. Raises EOFError if there will be none; `failure` says why."""
        answer = self._receive()
        if answer is None:
            raise EOFError(f"rank {self.rank} has ended")
        return answer.result

    def failure(self, wait_s: float) -> Failure | None:
        """How the process ended, once it has. Answers that nobody waits for any more are dropped."""
        while self._failure is None and self._connection.poll(wait_s):
            self._receive()
        return self._failure

    def wait(self) -> None:
        """Until the process has ended."""
        self._process.wait()

    def dismiss(self) -> None:
        """Ask it to end."""
        with suppress(OSError):
            self._connection.send(None)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> None:
        """Wait for its end, which is enforced after a while."""
        try:
            self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()

    def _receive(self) -> Done | None:
        """The next answer; None if the process has ended, and then `_failure` is known."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._failure = Failure(self.rank, self._how_it_ended(), self._end_of_log())
            return None
        if isinstance(answer, Done):
            return answer
        self._failure = answer
        return None

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _end_of_log(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - MAX_LOG_BYTES))
            text = file.read().decode(errors="replace").strip()
        return text or f"(rank {self.rank} printed nothing)"
