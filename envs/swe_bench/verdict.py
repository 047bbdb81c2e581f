"""What the tests of a grade say, from a report of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl.envs.swe_bench.task import SweTask

Status = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]

FIXED = ("passed", "xfailed", "xpassed")
KEPT = (*FIXED, "skipped")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether the issue is solved, by what was told of the tests that decide."""

    resolved: bool
    fail_to_pass: float
    """Share of the tests that failed before and pass now; 1 where the task names none."""
    pass_to_pass: float
    """Share of the tests that passed before and still do."""
    failures: Mapping[str, str]
    """Test → what became of it instead, e.g. failed or missing."""


def judge(task: SweTask, report: Report) -> Verdict:
    """All tests that the task names must be there and pass. Results that can't be believed are none."""
    statuses = {} if report.tampered else report.statuses
    is_sound = report.problem is None and report.tampered is None
    if task.expected is not None:
        return _compared(task.expected, statuses, is_whole=is_sound)
    unnamed = "passed" if task.fail_only and is_sound else "missing"
    failures: dict[str, str] = {}
    shares = []
    for tests, fine in ((task.fail_to_pass, FIXED), (task.pass_to_pass, KEPT)):
        ends = {test: _status(test, statuses) or unnamed for test in tests}
        failed = {test: end for test, end in ends.items() if end not in fine}
        failures |= failed
        shares.append(1 - len(failed) / len(ends) if ends else 1.0)
    resolved = is_sound and not failures and bool(task.fail_to_pass or task.pass_to_pass)
    return Verdict(resolved=resolved, fail_to_pass=shares[0], pass_to_pass=shares[1], failures=failures)


def _status(test: str, statuses: Mapping[str, Status]) -> str | None:
    """A parametrised name that was cut off, `test_a[1 - 2`, stands for all that begin with it; the worst counts."""
    if test in statuses or test.count("[") <= test.count("]"):
        return statuses.get(test)
    found = [status for name, status in statuses.items() if name.startswith(test)]
    return next((status for status in found if status not in KEPT), found[0] if found else None)


def _compared(expected: Mapping[str, str], statuses: Mapping[str, Status], *, is_whole: bool) -> Verdict:
    """Every test is as it is expected, and there are no others."""
    ends: dict[str, str] = {test: statuses.get(test, "missing") for test in expected}
    failures = {test: end for test, end in ends.items() if end != expected[test].lower()}
    failures |= {test: f"{status}, and isn't expected" for test, status in statuses.items() if test not in expected}
    share = 1 - len(failures) / max(1, len(set(expected) | set(statuses)))
    return Verdict(resolved=is_whole and not failures, fail_to_pass=share, pass_to_pass=share, failures=failures)
