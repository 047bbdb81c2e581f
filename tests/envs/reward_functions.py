"""Reward functions and tools that the tests name by pkg.module:function."""

from __future__ import annotations

import threading
from typing import Any

from agentrl.types import Grade, Trajectory

NOT_A_FUNCTION = 3


def length(reply: str) -> int:
    return len(reply)


async def slowly(reply: str, *, answer: Any, columns: dict[str, Any]) -> Grade:
    return Grade(reward=float(reply == answer), parts={"level": float(columns["level"])})


def everything(**arguments: Any) -> float:
    assert set(arguments) == {"reply", "answer", "columns", "task", "trajectory"}
    return float(arguments["trajectory"].task == arguments["task"])


def num_calls(trajectory: Trajectory) -> int:
    return sum(len(turn.tool_calls) for turn in trajectory.turns)


def nothing(reply: str) -> None:
    return None


def words(reply: str) -> str:
    return "good"


def broken(reply: str) -> float:
    raise ZeroDivisionError("broken on purpose")


RELEASED = threading.Event()


def hangs(reply: str) -> float:
    RELEASED.wait(60)
    return 1.0


def in_a_thread(reply: str) -> bool:
    return threading.current_thread() is not threading.main_thread()


def wants_too_much(reply: str, mood: str) -> float:
    return 0.0


def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()


def untyped(text):  # type: ignore[no-untyped-def]
    """A tool without types."""
