"""What logs of each form say, however odd their lines, and that nothing else is read out of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.envs.swe_bench.log_parsers import PARSERS, as_written, is_ours, parse
from agentrl.envs.swe_bench.verdict import Report
from tests.envs.swe_bench.parity import END, LOGS, START


def recorded(log: str) -> str:
    """The test part of a recorded log."""
    return (LOGS / f"{log}.log").read_text(encoding="utf-8").split(START)[1].split(END)[0]


def told(name: str, *lines: str) -> Report:
    return parse(name, "\n".join(lines))


# ---------------------------------------------------------------------------------------- pytest

MIXED = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_raises": "failed",
    "test_is_expected_to_fail": "xfailed",
    "test_passes_against_expectation": "xpassed",
    "test_passes_against_a_strict_expectation": "failed",
    "test_p[a b - c]": "failed",
    "test_p[x] - y]": "passed",
    "test_p[[]": "passed",
    "test_p[/tmp/x/y.txt]": "passed",
    "test_p[http://host/a]": "passed",
    "test_p[PASSED [100%]]": "passed",
    "test_p[tab\\there]": "passed",
    "test_p[\\xe9]": "passed",
    "test_setup_fails": "error",
    "test_teardown_fails": "error",
    "test_logs_and_prints": "passed",
    "TestClass::test_method": "passed",
    "test_inner": "passed",
}


@pytest.mark.parametrize(
    ("log", "more"),
    [
        ("pytest-3-verbose", {"test_is_skipped": "skipped"}),
        ("pytest-5", {"test_prints": "passed"}),
        ("pytest-9", {"test_prints": "passed", "test_subtests": "failed"}),
        ("pytest-9-verbose-colour", {"test_is_skipped": "skipped", "test_prints": "passed", "test_subtests": "failed"}),
        ("pytest-9-xdist", {"test_is_skipped": "skipped", "test_prints": "passed", "test_subtests": "failed"}),
        ("tox", {"test_prints": "passed", "test_subtests": "failed"}),
    ],
)
def test_every_pytest_tells_the_same_of_the_same_tests(log: str, more: dict[str, str]) -> None:
    expected = {f"tests/test_mixed.py::{test}": status for test, status in (MIXED | more).items()}
    expected["tests/test_more.py::test_passes"] = "passed"
    statuses = dict(parse("pytest_v2", recorded(log)).statuses)
    assert statuses.pop("tests/test_import.py", "error") == "error"
    with_a_reason = "tests/test_mixed.py::test_is_expected_to_fail - a known fault - really"
    assert statuses.pop(with_a_reason, "xfailed") == "xfailed"
    assert statuses == expected


def test_h08_progress_is_no_test_and_is_counted() -> None:
    report = told("pytest", "x.py::test_a PASSED [100%]", "PASSED [100%]", "FAILED")
    assert report.statuses == {"x.py::test_a": "passed"}
    assert report.num_unknown_lines == 2


def test_h08_skips_that_are_summed_up_name_no_test() -> None:
    report = told("pytest", "=== short test summary info ===", "SKIPPED [1] f.py:3: why", "SKIPPED f.py::test_a - why")
    assert report.statuses == {"f.py::test_a": "skipped"}
    assert report.num_unknown_lines == 0


def test_h08_names_may_have_dashes_spaces_brackets_and_colours() -> None:
    report = told(
        "pytest_v2",
        "\x1b[32mPASSED\x1b[0m t.py::\x1b[1mtest_p[a b - c]\x1b[0m",
        "\x1b[31mFAILED\x1b[0m t.py::\x1b[1mtest_p[d - e]\x1b[0m - AssertionError: assert [1] - [2]",
        "t.py::test_p[f PASSED [ 10%] g] FAILED [ 20%]",
        "t.py::test_p[[h] <- other/base.py PASSED",
    )
    assert report.statuses == {
        "t.py::test_p[a b - c]": "passed",
        "t.py::test_p[d - e]": "failed",
        "t.py::test_p[f PASSED [ 10%] g]": "failed",
        "t.py::test_p[[h]": "passed",
    }


def test_h09_what_another_stream_printed_behind_a_result_is_no_part_of_it() -> None:
    report = told(
        "pytest_v2",
        "t.py::test_a PASSED/usr/lib/x.py:3: UserWarning: no",
        "t.py::test_b[1] FAILED[warn] something",
        "PASSED t.py::test_c[2]/usr/lib/x.py:3: UserWarning: no",
        "PASSED t.py::test_d a warning",
    )
    assert report.statuses == {
        "t.py::test_a": "passed",
        "t.py::test_b[1]": "failed",
        "t.py::test_c[2]": "passed",
        "t.py::test_d": "passed",
    }


def test_lines_of_a_program_are_no_results() -> None:
    lines = [
        "ERROR    root:t.py:3 no",
        "FAILED to open std::string",
        "ERROR foo: bar",
        "a::b PASSED",
        "10:20::30 ERROR",
    ]
    assert told("pytest", *lines).statuses == {}


def test_a_failure_outweighs_what_was_told_before_and_nothing_outweighs_a_failure() -> None:
    forged = ["PASSED t.py::test_a", "FAILED t.py::test_b - no"]
    report = told("pytest", *forged, "FAILED t.py::test_a - AssertionError", "PASSED t.py::test_b")
    assert report.statuses == {"t.py::test_a": "failed", "t.py::test_b": "failed"}
    assert report.parts == {"conflicting_results": 2.0}
    assert told("pytest", "XPASS t.py::test_c", "PASSED t.py::test_c").statuses == {"t.py::test_c": "xpassed"}


def test_two_runs_after_one_another_are_both_read() -> None:
    text = recorded("pytest-5")
    other = text.replace("test_mixed", "test_other").replace("test_more", "test_least")
    both = parse("pytest_v2", text + other).statuses
    assert both == {**parse("pytest_v2", text).statuses, **parse("pytest_v2", other).statuses}
    assert len(both) > len(parse("pytest_v2", text).statuses)


def test_names_are_also_there_as_datasets_write_them() -> None:
    statuses = {"t.py::test_p[a b]": "passed", "t.py::test_p[a c]": "failed", "t.py::test_q[/x/y.txt]": "passed"}
    assert as_written("pytest", statuses) == statuses | {"t.py::test_p[a": "failed"}  # type: ignore[arg-type]
    assert as_written("parse_log_requests", statuses)["t.py::test_q[/y.txt]"] == "passed"  # type: ignore[arg-type]
    assert as_written("requests", {"t.py::test_u[http://h/x]": "passed"}) == {"t.py::test_u[http://h/x]": "passed"}
    mouse = {"t.py::test_m[MouseButton.LEFT-x]": "passed", "t.py::test_m[MouseButton.RIGHT-x]": "failed"}
    assert as_written("matplotlib", mouse)["t.py::test_m[1-x]"] == "passed"  # type: ignore[arg-type]
    assert as_written("matplotlib", mouse)["t.py::test_m[3-x]"] == "failed"  # type: ignore[arg-type]
    assert as_written(None, statuses) == as_written("foreign", statuses) == statuses  # type: ignore[arg-type]


def test_r2e_gym_names_tests_without_their_file() -> None:
    assert told(
        "r2e_gym",
        "=== short test summary info ===",
        "PASSED r2e_tests/test_1.py::TestA::test_b[x]",
        "FAILED r2e_tests/test_1.py::test_c - AssertionError",
        "XFAIL r2e_tests/test_1.py::test_d",
        "ERROR r2e_tests/test_2.py",
    ).statuses == {"TestA.test_b[x]": "passed", "test_c": "failed"}


# ---------------------------------------------------------------------------------------- unittest and Django


@pytest.mark.parametrize(
    ("log", "case", "has_method"),
    [
        ("unittest-3.8", "test_mixed.Plain", False),
        ("unittest-3.13", "test_mixed.Plain", True),
        ("django-4.2", "mixed_results.tests.Plain", True),
    ],
)
def test_unittest_tells_of_every_end(log: str, case: str, has_method: bool) -> None:
    report = parse("unittest", recorded(log))
    ends = {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_raises": "error",
        "test_has_a_docstring": "passed",
        "test_fails_with_a_docstring": "failed",
        "test_is_skipped": "skipped",
        "test_is_expected_to_fail": "xfailed",
        "test_passes_against_expectation": "xpassed",
        "test_prints": "passed",
        "test_subtests": "failed",
    }
    names = {test: f"{test} ({case}.{test})" if has_method else f"{test} ({case})" for test in ends}
    assert {test: report.statuses.get(name) for test, name in names.items()} == ends
    assert report.statuses["A page without a title is shown as it is."] == "passed"
    assert report.statuses["#12345 -- The second line of the page (with a note) ... is kept."] == "failed"
    assert {name.split(" (")[0] for name in report.statuses if "_FailedTest" in name} == {"test_import"}
    assert not [name for name in report.statuses if "Applying" in name or "words on" in name]


def test_h08_a_docstring_stands_for_its_test() -> None:
    report = told("django", "test_x (m.C)", "Doc line. ... ok", "test_y (m.C)", "Renders (a.b) ... twice. ... ERROR")
    assert report.statuses == {
        "test_x (m.C)": "passed",
        "Doc line.": "passed",
        "test_y (m.C)": "error",
        "Renders (a.b) ... twice.": "error",
    }


def test_h09_what_is_printed_around_a_status_is_no_part_of_it() -> None:
    report = told(
        "django",
        "  Applying sites.0002_alter_domain_unique...test_a (m.C) ... ok",
        "test_b (m.C) ... okSystem check identified no issues (0 silenced).",
        "test_c (m.C) ... Internal Server Error: /x",
        "ok",
        "test_d (m.C) ... okay, connecting",
        "FAIL",
        "test_e (m.C) ... test_f (m.C) ... skipped 'no'/usr/lib/x.py:3: Warning",
        "ok",
    )
    assert report.statuses == {
        "test_a (m.C)": "passed",
        "test_b (m.C)": "passed",
        "test_c (m.C)": "passed",
        "test_d (m.C)": "failed",
        "test_f (m.C)": "skipped",
    }
    assert report.num_unknown_lines == 1


# ---------------------------------------------------------------------------------------- sympy


def test_sympy_tells_of_every_end() -> None:
    statuses = parse("sympy", recorded("sympy-1.12")).statuses
    ends = {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_raises": "error",
        "test_fails_for_a_reason": "failed",
        "test_is_expected_to_fail": "xfailed",
        "test_passes_against_expectation": "xpassed",
        "test_skips": "skipped",
        "test_is_skipped": "skipped",
        "test_is_slow": "skipped",
        "test_prints": "passed",
        "test_warns": "passed",
        "test_compatibility_submodule": "passed",
    }
    assert ends.items() <= statuses.items()
    assert statuses["sympy/core/tests/test_mixed_results.py:test_raises"] == "error"


def test_sympy_names_that_two_files_share_stand_for_the_later_file() -> None:
    lines = ["a/test_a.py[2]", "test_x F", "test_y ok   [FAIL]", "", "b/test_b.py[1]", "test_x ok    [OK]"]
    report = told("sympy", *lines, "____ a/test_a.py:test_x ____")
    assert report.statuses["test_x"] == "passed" and report.statuses["a/test_a.py:test_x"] == "failed"


# ---------------------------------------------------------------------------------------- any text

WORDS = st.sampled_from(
    [
        *(
            "PASSED",
            "FAILED",
            "ERROR",
            "SKIPPED",
            "XFAIL",
            "ok",
            "FAIL",
            "skipped 'x'",
            " ... ",
            " - ",
            "[",
            "]",
            "[100%]",
        ),
        *(
            "t.py::test_a",
            "a/b c.py::T::test_b",
            "test_x (m.C)",
            "test_y (m.C.test_y)",
            "test_z",
            "a/test_a.py[3]",
            "F",
        ),
        *("=== FAILURES ===", "=== short test summary info ===", "=" * 70, "FAIL: ", "\n", " ", "\x1b[31m", "\x1b[0m"),
        *(
            "=== test session starts ===",
            "== 1 passed in 0.1s ==",
            "____ a.py:test_q ____",
            "[gw0] [ 3%] ",
            "SUBFAILED[x] ",
        ),
    ]
)
TEXTS = st.lists(WORDS | st.text(max_size=8), max_size=40).map("".join)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(["pytest_v2", "unittest", "sympy"]), text=TEXTS)
def test_no_text_raises_and_no_test_is_invented(name: str, text: str) -> None:
    plain = "".join(part.split("m", 1)[-1] if number else part for number, part in enumerate(text.split("\x1b[")))
    for test in parse(name, text).statuses:
        # Of sympy, the file stands a few lines above the test.
        assert test in text or test in plain or all(part in plain for part in test.split(":"))


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(PARSERS)), text=st.text(max_size=100) | TEXTS)
def test_every_parser_reads_any_text(name: str, text: str) -> None:
    assert is_ours(name) and parse(f"parse_log_{name}", text) == parse(name, text)


@pytest.mark.parametrize("name", ["pytest", "unittest", "sympy"])
def test_long_hostile_lines_do_not_stop_what_follows(name: str) -> None:
    hostile = ["t.py::t[" + "[]" * 4000 + " FAILE", "test_a (" + "a." * 4000 + ") .. ok", "a.b::" * 1800, "[" * 10**6]
    result = {"pytest": "PASSED t.py::test_b", "unittest": "test_b (m.C) ... ok", "sympy": "test_b ok"}[name]
    assert list(told(name, *hostile * 3, result).statuses.values()) == ["passed"]
