"""What follows from a report of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.swe_bench.verdict import Report, Status, judge
from tests.envs.swe_bench.small import swe_task

FIXED, KEPT = "t.py::fixed", "t.py::kept"


def judged(
    statuses: dict[str, Status], *, report: dict[str, Any] | None = None, **task: Any
) -> tuple[bool, float, float]:
    chosen = swe_task(Path("/x"), **({"fail_to_pass": (FIXED,), "pass_to_pass": (KEPT,)} | task))
    verdict = judge(chosen, Report(statuses=statuses, **(report or {})))
    return verdict.resolved, verdict.fail_to_pass, verdict.pass_to_pass


@pytest.mark.parametrize(
    ("fixed", "kept", "expected"),
    [
        ("passed", "passed", (True, 1.0, 1.0)),
        ("xfailed", "skipped", (True, 1.0, 1.0)),
        ("skipped", "passed", (False, 0.0, 1.0)),
        ("error", "passed", (False, 0.0, 1.0)),
        ("passed", "failed", (False, 1.0, 0.0)),
    ],
)
def test_which_ends_are_fine(fixed: Status, kept: Status, expected: tuple[bool, float, float]) -> None:
    assert judged({FIXED: fixed, KEPT: kept}) == expected


def test_a_test_that_is_missing_has_not_passed() -> None:
    assert judged({FIXED: "passed"}) == (False, 1.0, 0.0)
    assert judged({}, fail_only=True) == (True, 1.0, 1.0)
    assert judged({KEPT: "failed"}, fail_only=True) == (False, 1.0, 0.0)
    assert judged({}, fail_only=True, report={"problem": "it hangs"}) == (False, 0.0, 0.0)
    assert not judged({}, fail_to_pass=(), pass_to_pass=())[0]


def test_what_cannot_be_believed_is_none() -> None:
    passed: dict[str, Status] = {FIXED: "passed", KEPT: "passed"}
    assert judged(passed, report={"tampered": "a canary"}) == (False, 0.0, 0.0)
    assert judged(passed, report={"problem": "no seal"}) == (False, 1.0, 1.0)


def test_a_name_that_was_cut_off_stands_for_all_that_begin_so() -> None:
    cut = ("t.py::fixed[a - ",)
    assert judged({"t.py::fixed[a - b]": "passed", KEPT: "passed"}, fail_to_pass=cut)[0]
    two: dict[str, Status] = {"t.py::fixed[a - b]": "passed", "t.py::fixed[a - c]": "failed", KEPT: "passed"}
    assert not judged(two, fail_to_pass=cut)[0]
    assert not judged({"t.py::fixed[a]": "passed", KEPT: "passed"}, fail_to_pass=("t.py::fixed",))[0]


def test_an_expected_map_is_met_exactly() -> None:
    expected = {"a": "PASSED", "b": "FAILED"}
    assert judged({"a": "passed", "b": "failed"}, expected=expected) == (True, 1.0, 1.0)
    assert judged({"a": "passed", "b": "passed"}, expected=expected) == (False, 0.5, 0.5)
    assert not judged({"a": "passed", "b": "failed", "c": "passed"}, expected=expected)[0]
    assert not judged({"a": "passed"}, expected=expected)[0]
