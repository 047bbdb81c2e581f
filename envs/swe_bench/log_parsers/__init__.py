"""What the printed output of a test run says of each test, for repositories where our pytest plugin can't be had.

Each form has a file of its own, written from what the program prints. The names of the parsers are those of SWE-bench,
with or without their `parse_log_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentrl.envs.swe_bench.log_parsers import pytest_log, sympy_log, unittest_log
from agentrl.envs.swe_bench.log_parsers.told import Told
from agentrl.envs.swe_bench.verdict import Report, Status

PREFIX = "parse_log_"
MAX_LINE_CHARACTERS = 10_000
"""A longer line is no result."""
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Colours and whatever else is meant for a terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parser:
    """How a form of log is read."""

    read: Callable[[list[str], Told], None]
    written: Callable[[str], str] | None = None
    """Test → how datasets of this form write its name, where that differs from what the program printed."""


_PYTEST = Parser(read=pytest_log.read, written=pytest_log.up_to_a_space)
_OPTIONS = Parser(read=pytest_log.read, written=pytest_log.with_short_paths)
_WHOLE = Parser(read=pytest_log.read)
_UNITTEST = Parser(read=unittest_log.read)
PARSERS: Mapping[str, Parser] = {
    "pytest": _PYTEST,
    "pytest_v2": _WHOLE,
    "pytest_options": _OPTIONS,
    "matplotlib": Parser(read=pytest_log.read, written=pytest_log.with_mouse_numbers),
    "django": _UNITTEST,
    "unittest": _UNITTEST,
    "sympy": Parser(read=sympy_log.read),
    "r2e_gym": Parser(read=pytest_log.read_without_files),
    **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "seaborn", "sqlfluff", "xarray"), _PYTEST),
    **dict.fromkeys(("pydicom", "pylint", "requests"), _OPTIONS),
    **dict.fromkeys(("astropy", "scikit", "sphinx"), _WHOLE),
}


def is_ours(name: str) -> bool:
    """Can `parse` read this form?"""
    return name.removeprefix(PREFIX) in PARSERS


def parse(name: str, text: str) -> Report:
    """What a log says of each test; `name` is one that `is_ours`.

    A test keeps the first status that was told of it, but a failure outweighs whatever came before: a log can be made
    to say more, hardly to say less. How many tests were told of in two ways is the part `conflicting_results`.
    """
    told = Told()
    lines = [_CONTROL.sub("", line).rstrip() for line in text.split("\n")]
    PARSERS[name.removeprefix(PREFIX)].read([line for line in lines if len(line) <= MAX_LINE_CHARACTERS], told)
    return Report(
        statuses=as_written(name, told.statuses),
        num_unknown_lines=told.num_unknown_lines,
        parts={"conflicting_results": float(len(told.conflicting))},
    )


def as_written(name: str | None, statuses: Mapping[str, Status]) -> dict[str, Status]:
    """The same with each test under the name, too, that datasets of the parser `name` give it.

    It serves results of our plugin as well: the datasets' names were once read from logs. Where several tests share
    such a name, a failure outweighs.
    """
    parser = PARSERS.get((name or "").removeprefix(PREFIX))
    told = Told(dict(statuses))
    if parser and parser.written:
        for test, status in statuses.items():
            if (written := parser.written(test)) not in statuses:
                told.add(written, status)
    return told.statuses
