"""`agentrl` that kills itself with SIGKILL at a named point: what the kill soak runs.

    python -m benchmarks.victim POINT CALL -- train --env calculator …

At the CALL-th time that POINT is reached (from 1) the process is gone, as with `kill -9` from outside.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy.engine.default import DefaultDialect

from agentrl.cli import main
from agentrl.store.recorder import SqlRecorder
from agentrl.sync import memory
from agentrl.train import checkpoint
from agentrl.train.trainer import Trainer

POINTS: dict[str, tuple[Any, str, bool]] = {
    "begin": (SqlRecorder, "begin", True),
    "insert": (SqlRecorder, "add_turn", True),
    "finish": (SqlRecorder, "finish", False),
    "grade": (SqlRecorder, "add_grade", True),
    "commit": (DefaultDialect, "do_commit", False),
    "update": (Trainer, "step", True),
    "proof": (memory, "_prove_checksums", False),
    "checkpoint": (checkpoint, "_flush", True),
    "rename": (checkpoint, "_replace", False),
    "prune": (checkpoint, "prune", False),
}
"""name → (owner, its function, True: after the call, False: before it)."""


def die_at(point: str, call: int) -> None:
    """Arrange it."""
    owner, name, after = POINTS[point]
    real, left = getattr(owner, name), [call]

    def is_due() -> bool:
        left[0] -= 1
        return left[0] == 0

    setattr(
        owner, name, _async(real, is_due, after) if inspect.iscoroutinefunction(real) else _plain(real, is_due, after)
    )


def _plain(real: Callable[..., Any], is_due: Callable[[], bool], after: bool) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        due = is_due()
        if due and not after:
            _die()
        result = real(*args, **options)
        if due:
            _die()
        return result

    return wrapped


def _async(real: Callable[..., Any], is_due: Callable[[], bool], after: bool) -> Callable[..., Any]:
    async def wrapped(*args: Any, **options: Any) -> Any:
        due = is_due()
        if due and not after:
            _die()
        result = await real(*args, **options)
        if due:
            _die()
        return result

    return wrapped


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] != "none":
        die_at(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[sys.argv.index("--") + 1 :]))
