"""Ours and swebench agree on recorded logs, status by status and in the verdict. Where they don't, it is told here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentrl.envs.swe_bench import verdict
from agentrl.envs.swe_bench.log_parsers import foreign, parse
from agentrl.envs.swe_bench.script import run
from agentrl.envs.swe_bench.task import SweTask
from agentrl.sandbox import Sandbox, SandboxSpec
from tests.boxes import best_box
from tests.envs.swe_bench import parity

ANSWERS: dict[str, Any] = json.loads(parity.ANSWERS.read_text(encoding="utf-8"))["answers"]
PYTHON = os.environ.get(foreign.INTERPRETER) or (sys.executable if importlib.util.find_spec("swebench") else "")
DIFFERENT = {
    "a phantom": (".*", "|".join(re.escape(phantom) for phantom in parity.PHANTOMS)),
    "a method's name alone, beside the test's": ("django", r"\w+$"),
    "a part of a test": ("django", r"test_subtests "),
    "a reason, taken for a part of the name": ("pytest_v2|sphinx", r".* - (RuntimeError|a known)"),
    "cut in the middle of its parameters": ("pytest_v2|sphinx", r"tests/test_mixed.py::test_p\[a b$"),
    "a failure while it was taken down, overlooked": ("pytest_v2|sphinx|seaborn", r".*::test_teardown_fails"),
    "an exception, told of again as a failure": ("sympy", r"sympy/.*:test_raises$"),
}
"""Why a status of swebench isn't ours → parser, names."""


def cases() -> list[Any]:
    return [pytest.param(*pair.split(" "), answer, id=pair) for pair, answer in ANSWERS.items()]


def is_different(parser: str, test: str) -> bool:
    return any(re.match(f"({parsers})$", parser) and re.match(tests, test) for parsers, tests in DIFFERENT.values())


@pytest.mark.parametrize(("log", "parser", "answer"), cases())
def test_the_statuses_are_swebenchs(log: str, parser: str, answer: dict[str, Any]) -> None:
    text = (parity.LOGS / f"{log}.log").read_text(encoding="utf-8").split(parity.START)[1].split(parity.END)[0]
    ours = parse(parser, text).statuses
    theirs = {test: foreign.STATUSES[status] for test, status in answer["statuses"].items()}
    differing = {test for test, status in theirs.items() if ours.get(test) != status}
    assert {test for test in differing if not is_different(parser, test)} == set()
    assert len(theirs) - len(differing) >= 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    async with best_box(SandboxSpec(max_processes=64)) as box:
        yield box


@pytest.mark.asyncio(loop_scope="module")
async def test_the_verdicts_are_swebenchs(box: Sandbox) -> None:
    judged, expected = {}, {}
    for log in parity.PARSERS:
        content = (parity.LOGS / f"{log}.log").read_bytes()
        await box.write(f"/tmp/{log}.log", content)
        exit_code = content.decode().rsplit(parity.EXIT_CODE)[1].strip()
        lines = [f": '{parity.START}'", f"cat '/tmp/{log}.log'", f"(exit {exit_code})", f": '{parity.END}'", "false"]
        for parser in parity.PARSERS[log]:
            for number, record in enumerate(ANSWERS[f"{log} {parser}"]["tasks"]):
                task = SweTask(
                    id=log, format="agentrl", problem_statement="p", reports_by="log",
                    eval_script="\n".join(lines), log_parser=parser,
                    fail_to_pass=record["fail_to_pass"], pass_to_pass=record["pass_to_pass"],
                )  # fmt: skip
                report = await run(box, task, float("inf"))
                judged[log, parser, number] = verdict.judge(task, report).resolved
                expected[log, parser, number] = record["resolved"]
    overlooked = {pair for pair, resolved in expected.items() if resolved and not judged[pair]}
    assert {pair for pair, resolved in judged.items() if resolved and not expected[pair]} == set()
    # A test whose tear-down fails is none that passes, whatever swebench makes of it.
    assert {parser for _, parser, _ in overlooked} <= {"pytest_v2", "sphinx", "seaborn"}
    assert sum(judged.values()) >= 7


@pytest.fixture
def swebench(monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python that has it. Skip the test where there is none; but where changes are judged, fail."""
    if not PYTHON:
        assert os.environ.get("CI") != "true", "swebench is missing: make test brings it"
        pytest.skip(f"swebench isn't installed, and {foreign.INTERPRETER} names no Python with it")
    monkeypatch.setenv(foreign.INTERPRETER, PYTHON)
    return PYTHON


def test_what_was_written_down_is_what_swebench_says(swebench: str) -> None:
    assert parity.asked(swebench)["answers"] == ANSWERS


def with_parser(log_parser: str) -> SweTask:
    return SweTask(
        id="a__a-1", format="agentrl", problem_statement="p", reports_by="log", eval_script="true",
        log_parser=log_parser, fail_to_pass=["t"],
    )  # fmt: skip


async def test_a_log_that_only_swebench_can_read_is_read_by_it(swebench: str) -> None:
    text = (parity.LOGS / "pytest-9.log").read_text(encoding="utf-8").split(parity.START)[1].split(parity.END)[0]
    report = await foreign.parse(with_parser("pytest_v2"), text)
    expected = ANSWERS["pytest-9 pytest_v2"]["statuses"]
    assert report.statuses == {test: foreign.STATUSES[status] for test, status in expected.items()}
    with pytest.raises(foreign.LogParserError, match=r"a__a-1: neither we nor swebench have .*'fortran'.*pytest_v2"):
        await foreign.parse(with_parser("fortran"), text)
