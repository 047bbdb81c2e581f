"""What `unittest -v` prints, and with it Django's `runtests.py --verbosity 2`.

```
test_a (app.tests.Case) ... ok
test_b (app.tests.Case)
The first line of its docstring. ... FAIL
test_c (app.tests.Case) ... what it printed
skipped 'why'
======================================================================
FAIL: test_b (app.tests.Case)
```
Since Python 3.11 the method stands in the brackets as well. A test with a docstring is also told of under the
docstring's line, since datasets name it so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.envs.swe_bench.log_parsers.told import FAILURES, Told
from agentrl.envs.swe_bench.verdict import Status

STATUSES: dict[str, Status] = {
    "ok": "passed",
    "FAIL": "failed",
    "ERROR": "error",
    "expected failure": "xfailed",
    "unexpected success": "xpassed",
}
DOTS = " ... "
_TEST = r"[^\W\d]\w* \([\w<>]+(?:\.[\w<>]+)+\)"
_ALONE = re.compile(rf"({_TEST})$")
_STARTED = re.compile(rf"({_TEST})((?: \[[^\]]*\])?(?: \([^)]*\))?) \.\.\.(?: |$)")
_STATUS = re.compile(rf"({'|'.join(STATUSES)}|skipped (?=['\"]))(?:$|(?=['\"])|(?=[A-Z][a-z]|[^\w\s.,]))")
"""Glued behind it may be what another stream printed: a word of its own, or a path."""
_RULE = re.compile("={70}$")
_DETAIL = re.compile(rf"({'|'.join(STATUSES)}): ({_TEST})")


@dataclass(slots=True)
class _Running:
    """The test that has been named and not yet told of."""

    test: str
    has_dots: bool
    docstring: str | None = None


def read(lines: list[str], told: Told) -> None:
    """Tell what the lines say of each test."""
    running: _Running | None = None
    before = ""
    for line in lines:
        if _RULE.match(line):
            running = None
        elif _RULE.match(before) and (detail := _DETAIL.match(line)):
            told.add(detail[2], STATUSES[detail[1]])
        elif alone := _ALONE.match(line):
            running = _Running(alone[1], has_dots=False)
        elif running and not running.has_dots and not _STARTED.match(line):
            running = _after_a_name(line, running, told)
        else:
            running = _progress(line, running, told)
        before = line


def _after_a_name(line: str, running: _Running, told: Told) -> _Running | None:
    docstring, dots, rest = f"{line} ".rpartition(DOTS)
    if not dots:
        return running
    return _ended(rest.rstrip(), _Running(running.test, has_dots=True, docstring=docstring), told)


def _progress(line: str, running: _Running | None, told: Told) -> _Running | None:
    started = list(_STARTED.finditer(line))
    for start in started:
        # Of one that is followed by another on the same line, nothing is told there.
        running = _Running(start[1], has_dots=True)
        if start is started[-1]:
            running = _ended(line[start.end() :], running, told, is_part=bool(start[2]))
    if started:
        return running
    if running and _status_of(line, is_whole=True):
        return _ended(line, running, told)
    told.num_unknown_lines += bool(_status_of(line.rpartition(DOTS)[2], is_whole=True))
    return running


def _ended(text: str, running: _Running, told: Told, *, is_part: bool = False) -> _Running | None:
    """`is_part`: of a subtest only a failure says something of the test."""
    status = _status_of(text)
    if status is None:
        return running
    if not is_part or status in FAILURES:
        told.add(running.test, status)
        if running.docstring:
            told.add(running.docstring, status)
    return None


def _status_of(text: str, *, is_whole: bool = False) -> Status | None:
    found = _STATUS.match(text)
    if not found or (is_whole and found[1] in STATUSES and found[1] != text):
        return None
    return STATUSES.get(found[1], "skipped")
