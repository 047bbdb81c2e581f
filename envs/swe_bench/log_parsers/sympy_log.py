"""What sympy's `bin/test --verbose` prints.

```
sympy/core/tests/test_basic.py[3]
test_a ok
test_b F
test_c why s                                                        [FAIL]
________________________________________________________________________________
_________________ sympy/core/tests/test_basic.py:test_b _________________
```
Tests are told of as `file:test`. Datasets name the function alone: it stands for the file that was tested last.
"""

from __future__ import annotations

import re

from agentrl.envs.swe_bench.log_parsers.told import Told
from agentrl.envs.swe_bench.verdict import Status

STATUSES: dict[str, Status] = {
    "ok": "passed",
    "F": "failed",
    "E": "error",
    "K": "error",
    "f": "xfailed",
    "X": "xpassed",
    "s": "skipped",
    "w": "skipped",
}
_FILE = re.compile(r"(\S+\.py)\[\d+\]$")
_TEST = re.compile(r"(test_\w+) (.*)$")
_FILE_ENDED = re.compile(r"\s+\[(?:OK|FAIL)\]$")
_SKIPPED = re.compile(r".* [sw]$")
"""The reason comes before it."""
_FAILED = re.compile(r"_+ (\S+\.py:test_\w+) _+$")


def read(lines: list[str], told: Told) -> None:
    """Tell what the lines say of each test."""
    file, test = "", None
    for line in lines:
        if heading := _FILE.match(line):
            file, test = heading[1], None
        elif failure := _FAILED.match(line):
            told.add(failure[1], "failed")
        else:
            test = _progress(_FILE_ENDED.sub("", line), file, test, told)
    for name, status in list(told.statuses.items()):
        told.statuses[name.rpartition(":")[2]] = status


def _progress(line: str, file: str, test: str | None, told: Told) -> str | None:
    """The test whose status is still to come."""
    started = _TEST.match(line)
    text = started[2] if started else line
    status = STATUSES.get(text) or ("skipped" if started and _SKIPPED.match(text) else None)
    test = started[1] if started else test
    if status is None:
        return test
    if test is None:
        told.num_unknown_lines += 1
    else:
        told.add(f"{file}:{test}" if file else test, status)
    return None
