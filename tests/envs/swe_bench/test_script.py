"""Eval scripts in a box: what is read, when it counts, and what the exit code has to say."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrl.envs.swe_bench import script
from agentrl.envs.swe_bench.log_parsers import foreign
from agentrl.envs.swe_bench.log_parsers.foreign import LogParserError
from agentrl.envs.swe_bench.script import marked, run
from agentrl.envs.swe_bench.task import SweTask
from agentrl.envs.swe_bench.verdict import Report, judge
from agentrl.errors import SandboxError
from agentrl.sandbox import Sandbox, SandboxSpec
from tests.boxes import best_box

pytestmark = pytest.mark.asyncio(loop_scope="module")
START, END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"
UNITTEST = """\
import sys, unittest

class Case(unittest.TestCase):
    def test_a(self):
        print("words", end="")
        sys.stdout.flush()

    def test_b(self):
        self.assertEqual(1, {})

if __name__ == "__main__":
    unittest.main(verbosity=2)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box() -> AsyncIterator[Sandbox]:
    async with best_box(SandboxSpec(max_processes=64)) as box:
        yield box


def task(text: str, **fields: Any) -> SweTask:
    known = {"id": "a__a-1", "format": "agentrl", "problem_statement": "p", "log_parser": "pytest", "timeout_s": 60.0}
    return SweTask(**(known | {"reports_by": "log", "eval_script": text} | fields))


async def ran(box: Sandbox, text: str, **fields: Any) -> Report:
    return await run(box, task(text, **fields), time.monotonic() + 60)


async def test_real_tests_are_run_and_read(box: Sandbox) -> None:
    for number, status in ((1, "passed"), (2, "failed")):
        await box.write("tests.py", UNITTEST.format(number).encode())
        lines = ["#!/bin/bash", "set -uxo pipefail", "git apply nothing", START, "python3 tests.py", END, "false"]
        report = await ran(box, "\n".join(lines), log_parser="django")
        assert {name.split(" ")[0]: end for name, end in report.statuses.items()} == {
            "test_a": "passed",
            "test_b": status,
        }
        assert report.problem is None and report.parts["tests_timed_out"] == 0 and "words" in report.output


async def test_only_what_comes_after_the_start_counts(box: Sandbox) -> None:
    before = f"echo 'PASSED t.py::test_early'; echo \"{START}\"; echo '>>>>> Start Test Output'"
    report = await ran(
        box, f'{before}\n  echo "never"\n{START}\necho PASSED t.py::test_a\n{END}\necho PASSED t.py::test_b'
    )
    assert report.statuses == {"t.py::test_a": "passed"} and report.problem is None


async def test_a_script_without_markers_is_all_tests(box: Sandbox) -> None:
    report = await ran(box, "echo PASSED t.py::test_a\necho FAILED t.py::test_b >&2\nexit 1")
    assert report.statuses == {"t.py::test_a": "passed", "t.py::test_b": "failed"} and report.problem is None


async def test_h09_the_two_streams_are_read_apart(box: Sandbox) -> None:
    lines = [START, "printf 't.py::test_a PASS'", "printf 'a warning' >&2", "printf 'ED\\n'", END]
    assert (await ran(box, "\n".join(lines))).statuses == {"t.py::test_a": "passed"}


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("echo PASSED t.py::test_a; (exit 3)", "exit code 3, but the log names no failure"),
        ("echo PASSED t.py::test_a; kill -9 $$", "exit code 137, but the log names no failure"),
        ("echo FAILED t.py::test_a", "exit code 0, but the log names failures"),
        ("echo nothing", "names no test; the exit code is 0"),
    ],
)
async def test_log_and_exit_code_must_agree(box: Sandbox, tests: str, words: str) -> None:
    assert words in str((await ran(box, f"{START}\n{tests}\n{END}\ntrue")).problem)


async def test_the_code_under_test_cannot_end_the_test_part_for_the_script(box: Sandbox) -> None:
    forged = "echo PASSED t.py::test_a; echo '>>>>> End Test Output'; echo '>>>>> Test Exit Code: 0'; (exit 1)"
    report = await ran(box, f"{START}\n{forged}\n{END}")
    assert report.problem is not None and "exit code 1" in report.problem


async def test_neither_a_file_nor_the_process_list_shows_the_word(box: Sandbox) -> None:
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' > seen; env >> seen; cat /proc/$$/fd/0 >> seen"
    report = await ran(box, f"echo before\n{START}\n{look}\necho PASSED t.py::test_a\n{END}")
    seen = (await box.read("seen")).decode()
    assert 'eval "$script"' in seen and "echo before" not in seen and report.statuses == {"t.py::test_a": "passed"}


async def test_h14_tests_that_hang_are_the_agents_fault(box: Sandbox) -> None:
    report = await ran(box, f"{START}\necho PASSED t.py::test_a\nsleep 60\n{END}", timeout_s=3.0)
    assert report.problem == "the tests took longer than 3 s" and report.parts["tests_timed_out"] == 1
    assert report.statuses == {"t.py::test_a": "passed"}
    late = await run(box, task(f"{START}\nsleep 60\n{END}"), time.monotonic() - 5)
    assert late.parts["tests_timed_out"] == 1


async def test_a_script_that_ends_before_the_tests_says_so(box: Sandbox) -> None:
    report = await ran(box, f"set -e\necho words\nfalse\n{START}\necho PASSED t.py::test_a\n{END}")
    assert report.problem == "the eval script ended before the tests, with exit code 1" and "words" in report.output


async def test_a_map_that_must_be_whole_is_compared_whatever_the_exit_code(box: Sandbox) -> None:
    text = f"{START}\necho PASSED r2e/t.py::test_a\n(exit 1)\n{END}"
    report = await ran(box, text, log_parser="r2e_gym", expected={"test_a": "passed"})
    assert report.problem is None and report.statuses == {"test_a": "passed"}


async def test_the_exit_code_that_a_script_has_kept_is_the_tests() -> None:
    lines = marked(f"a\n{START}\ntests\nSWEBENCH_TEST_EXIT_CODE=$?\n{END}\ntidy up", "WORD").split("\n")
    assert lines[0] == "a" and "WORD" in lines[1]
    assert lines[2:] == ["tests", "SWEBENCH_TEST_EXIT_CODE=$?", 'exit "${SWEBENCH_TEST_EXIT_CODE:-$?}"', ""]


async def test_what_limits_md_says_gets_through_does(box: Sandbox) -> None:
    """Where this fails, the page has something to take back."""
    code = "import os; print('test_b (__main__.Case.test_b) ... ok', flush=True); os._exit(0)"
    await box.write("tests.py", f"{code}\n{UNITTEST.format(2)}".encode())
    decides = {"log_parser": "django", "fail_to_pass": ("test_b (__main__.Case.test_b)",)}
    report = await ran(box, f"{START}\npython3 tests.py\n{END}", **decides)
    assert judge(task("", **decides), report).resolved
    assert "| forged lines get through |" in (Path(__file__).parents[3] / "docs" / "limits.md").read_text()


# ---------------------------------------------------------------------------------------- parsers of swebench


async def test_an_unknown_parser_is_told_of_before_anything_runs(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(foreign.INTERPRETER, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        LogParserError, match=r"a__a-1: .*parse_log_jest.*django.*agentrl\[swebench\].*AGENTRL_SWEBENCH"
    ):
        await ran(box, "echo ran > was_run", log_parser="parse_log_jest")
    with pytest.raises(FileNotFoundError):
        await box.read("was_run")


@pytest.fixture
def swebench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has a small package of swebench's name and form."""
    package = tmp_path / "swebench" / "harness"
    package.mkdir(parents=True)
    (tmp_path / "swebench" / "__init__.py").touch()
    (package / "__init__.py").write_text("print('a greeting')\n")
    (package / "log_parsers.py").write_text(
        "def parse(log, spec):\n"
        "    return {f'{spec.instance_id} {spec.version} {line}': line for line in log.split()}\n"
        "PARSER_REGISTRY = {'parse_log_jest': parse, 'parse_log_broken': lambda log, spec: log.nothing}\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv(foreign.INTERPRETER, str(python))
    return python


async def test_other_forms_are_read_by_swebench_in_a_process_of_its_own(box: Sandbox, swebench: Path) -> None:
    fields = {"log_parser": "jest", "metadata": {"version": "2.1"}}
    report = await ran(box, f"{START}\necho FAILED; echo XFAIL ODD; false\n{END}", **fields)
    assert report.statuses == {"a__a-1 2.1 FAILED": "failed", "a__a-1 2.1 XFAIL": "xfailed"}
    assert report.num_unknown_lines == 1 and report.problem is None
    assert "swebench" not in sys.modules


@pytest.mark.parametrize(("name", "words"), [("zest", "zest.*django.*parse_log_jest"), ("broken", "nothing")])
async def test_what_swebench_cannot_read_is_unmeasured(box: Sandbox, swebench: Path, name: str, words: str) -> None:
    with pytest.raises(LogParserError, match=f"a__a-1: .*{words}"):
        await ran(box, "echo PASSED t.py::test_a", log_parser=name)


async def test_an_interpreter_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreign.INTERPRETER, "/nowhere/python")
    with pytest.raises(LogParserError, match="a__a-1: /nowhere/python can't be started"):
        await foreign.parse(task("", log_parser="jest"), "")


async def test_a_task_without_a_script_and_a_box_without_bash_are_told_of(box: Sandbox) -> None:
    with pytest.raises(LogParserError, match=r"a__a-1: .*eval_script and a log_parser"):
        await ran(box, "", log_parser="pytest")

    class WithoutBash:
        async def exec(self, command: list[str], **options: Any) -> Any:
            return await box.exec([f"no-{command[0]}", *command[1:]], **options)

    with pytest.raises(SandboxError, match="a__a-1: the image has no bash"):
        await run(WithoutBash(), task("echo"), time.monotonic() + 60)  # type: ignore[arg-type]


async def test_the_log_is_bounded(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "MAX_LOG_BYTES", 100_000)
    report = await ran(box, f"{START}\nhead -c 400000 /dev/zero | tr '\\0' x\n{END}")
    assert report.problem is not None and "bytes of the log were left out" in report.problem
    assert len(report.output) <= script.MAX_OUTPUT_CHARACTERS
