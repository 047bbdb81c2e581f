"""What the tests of a grade say, from a report of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was told of each test, by our pytest plugin or read from a log."""

    statuses: Mapping[str, Status]
    """Test → the first status that was told of it."""
    tampered: str | None = None
    """Why the results can't be believed, e.g. "the canary that must fail passed"; None: no sign of it."""
    problem: str | None = None
    """Why there are no results, or not all: the tests hang, don't collect, or the patch doesn't apply. It is the
    agent's, or the task's, never the machine's: that raises SandboxError."""
    output: str = ""
    """The end of what the tests printed, for the grader's output."""
    num_unknown_lines: int = 0
    """Of a log: lines that look like results and name no test (H08)."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Further numbers for the grade, e.g. tests_timed_out."""
