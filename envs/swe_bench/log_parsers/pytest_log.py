"""What pytest prints: a line for each test with -v, and the short summary with -rA.

```
tests/test_a.py::test_b[x - y] PASSED              [ 50%]
PASSED tests/test_a.py::test_b[x - y]
FAILED tests/test_a.py::test_c - AssertionError: no
ERROR tests/test_d.py - ImportError: gone
SKIPPED [1] tests/test_a.py:3: why
```
The last one names no test. The first form stands before the sections with captured output, the others after their last
heading. What lies between is what tests printed, perhaps a whole pytest session that a test has started, and no result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentrl.envs.swe_bench.log_parsers.told import Told
from agentrl.envs.swe_bench.verdict import Status

STATUSES: dict[str, Status] = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XPASS": "xpassed",
}
_WORDS = "|".join(STATUSES)
_START = re.compile(r"=+ test session starts =+$")
_END = re.compile(r"=+ .*\bin [\d.]+ ?s.* =+$")
_SECTION = re.compile(r"=+ (?:ERRORS|FAILURES|PASSES|XPASSES|XFAILURES|warnings summary.*) =+$")
_SUMMARY = re.compile(r"=+ short test summary info =+$")

_WORKER = re.compile(r"\[gw\d+\] (?:\[ *\d+%\] )?(?=[A-Z])")
"""What pytest-xdist prints before a result."""
_STATUS_FIRST = re.compile(rf"({_WORDS}) (\S.*)")
_TEST_FIRST = re.compile(rf"(?: <- \S+)? +({_WORDS})")
_SUBTEST_FAILED = re.compile(r"SUBFAIL(?:ED)?\b")
_STRAY = re.compile(rf"(?:{_WORDS})(?: *\[ *\d+%\])?$")
_NAME = re.compile(r"[^\s:\[\]][^:\[\]]*?\.\w+::[^\s\[]+")
"""A test up to its parameters. A path has an extension and may have spaces, what comes behind it has none."""
_FILE = re.compile(r"([^\s:\[\]]+\.py)(?: - |$)")
_WHOLE_LINE = re.compile("$")
_MESSAGE = re.compile(" - | ?$")


def read(lines: list[str], told: Told) -> None:
    """Tell what the lines say of each test."""
    is_result = is_summary = True
    for line in _of_outer_sessions(lines):
        if _SUMMARY.match(line):
            is_result, is_summary = False, True
        elif _SECTION.match(line):
            is_result = is_summary = False
        elif _START.match(line) or _END.match(line):
            is_result = is_summary = True
        elif is_summary and (found := _STATUS_FIRST.match(line, _end_of_worker(line))):
            _summed_up(found[1], found[2], told)
        elif is_result or is_summary:
            _told_at_once(line, told)


def read_without_files(lines: list[str], told: Told) -> None:
    """As R2E-Gym writes names: without the file, and without what follows a " - "."""
    whole = Told()
    read(lines, whole)
    told.num_unknown_lines = whole.num_unknown_lines
    for test, status in whole.statuses.items():
        name = ".".join(test.split("::")[1:]).split(" - ")[0]
        if name and status in ("passed", "failed", "error"):
            told.add(name, status)


def up_to_a_space(test: str) -> str:
    """Some datasets cut names at their first space."""
    return test.split(" ", 1)[0]


def with_short_paths(test: str) -> str:
    """Of a parameter that is a path only the last part is written: the rest depends on the machine."""
    name, bracket, parameter = up_to_a_space(test).partition("[")
    if not parameter.endswith("]") or not parameter.startswith("/") or parameter.startswith("//") or "*" in parameter:
        return name + bracket + parameter
    return f"{name}[/{parameter[:-1].rsplit('/', 1)[-1]}]"


def with_mouse_numbers(test: str) -> str:
    """matplotlib's buttons are an enumeration whose members print differently from one Python to the next."""
    return up_to_a_space(test.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def _of_outer_sessions(lines: list[str]) -> list[str]:
    """Without the sessions that tests start and print; all lines where starts and ends don't match up."""
    depth, outer = 0, []
    for line in lines:
        depth += bool(_START.match(line))
        if depth <= 1:
            outer.append(line)
        if _END.match(line):
            depth = max(0, depth - 1)
    return lines if depth else outer


def _end_of_worker(line: str) -> int:
    worker = _WORKER.match(line)
    return worker.end() if worker else 0


def _summed_up(word: str, text: str, told: Told) -> None:
    status = STATUSES[word]
    test = next(_tests(text, _WHOLE_LINE if status == "passed" else _MESSAGE), None)
    if test is None and status == "error" and (file := _FILE.match(text)):
        test = file[1]
    if test is not None:
        told.add(test, status)
    elif _STRAY.match(f"{word} {text}"):
        told.num_unknown_lines += 1


def _told_at_once(line: str, told: Told) -> None:
    if _SUBTEST_FAILED.search(line):
        for start in re.finditer(r"(?:^|(?<= ))\S+::", line):
            if test := next(_tests(line[start.start() :], _MESSAGE), None):
                told.add(test, "failed")
        return
    for test in _tests(line, _TEST_FIRST):
        if status := _TEST_FIRST.match(line, len(test)):
            told.add(test, STATUSES[status[1]])
        return
    told.num_unknown_lines += bool(_STRAY.match(line))


def _tests(text: str, follows: re.Pattern[str]) -> Iterator[str]:
    """What the test may be that `text` begins with, the likeliest first. `follows`: what must come behind it.

    Parameters may hold anything, brackets and " - " too; those whose brackets are in pairs come first. Last comes a
    name with something glued behind it, as another stream can do.
    """
    name = _NAME.match(text)
    if not name:
        return
    if not text.startswith("[", name.end()):
        yield name[0]
        return
    depth, paired, ends = 0, [], []
    for place in re.finditer(r"[\[\]]", text[name.end() :]):
        depth += 1 if place[0] == "[" else -1
        if place[0] == "]":
            ends.append(name.end() + place.end())
        if depth == 0:
            paired.append(name.end() + place.end())
    fits = [end for end in ends if follows.match(text, end)]
    for end in sorted(fits, key=lambda end: end not in paired) or paired[:1]:
        yield text[:end]
