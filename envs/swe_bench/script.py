"""Runs a task's eval script in a grader's box and reads what it printed, where pytest with our plugin can't be had.

What the tests print decides here, and the code under test can print, too. Three things make that harder, and none of
them stops code that knows how it is graded: only what comes after a random word counts, a failure outweighs what was
told of the same test before, and the exit code of the tests must agree with what the log says.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from agentrl.envs.swe_bench import log_parsers
from agentrl.envs.swe_bench.log_parsers import foreign
from agentrl.envs.swe_bench.log_parsers.foreign import LogParserError
from agentrl.envs.swe_bench.log_parsers.told import FAILURES
from agentrl.envs.swe_bench.task import SweTask
from agentrl.envs.swe_bench.verdict import Report, Status
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import ExecResult, Sandbox

MAX_LOG_BYTES = 16 * 1024**2
"""Of each stream; what is longer loses its middle."""
MAX_OUTPUT_CHARACTERS = 20_000
MARGIN_S = 3.0
"""For reading the log before the deadline."""
SHELL = 'script=$(cat); eval "$script"'
"""The script comes over stdin, so that neither a file nor the process list shows its word to the code under test."""
NO_SUCH_PROGRAM = 127
_MARKER = r"""[ \t]*(?::|echo)[ \t]+(["']?)>>>>> %s Test Output\1[ \t]*\r?"""
_START, _END = re.compile(_MARKER % "Start"), re.compile(_MARKER % "End")
_EXIT = 'exit "${SWEBENCH_TEST_EXIT_CODE:-$?}"'


async def run(box: Sandbox, task: SweTask, deadline: float) -> Report:
    """Run the script in the box, in which the patch and the task's tests are already in place.

    Raises SandboxError where the box is gone or has no bash, and LogParserError where the log can't be read.
    """
    if not task.eval_script or not task.log_parser:
        raise LogParserError(f"{task.id}: reports_by is 'log', which needs an eval_script and a log_parser")
    if not log_parsers.is_ours(task.log_parser):
        foreign.interpreter(task)
    word = secrets.token_hex(16)
    limit_s = max(1.0, min(task.timeout_s, deadline - time.monotonic() - MARGIN_S))
    ran = await box.exec(
        ["bash", "-c", SHELL],
        stdin=marked(task.eval_script, word).encode(),
        timeout_s=limit_s,
        max_output_bytes=MAX_LOG_BYTES,
    )
    if ran.exit_code == NO_SUCH_PROGRAM and not ran.stdout and b"bash" in ran.stderr:
        raise SandboxError(f"{task.id}: the image has no bash, which its eval script needs", SandboxFault.IMAGE)
    return await _read(task, ran, word, limit_s)


def marked(script: str, word: str) -> str:
    """The script, saying `word` on a line of both streams before the tests, and ending with their exit code.

    What follows the end marker only tidies up. A script without markers is all tests.
    """
    lines = script.split("\n")
    starts = [number for number, line in enumerate(lines) if _START.fullmatch(line)]
    start = starts[-1] if starts else -1
    ends = [number for number in range(start + 1, len(lines)) if _END.fullmatch(lines[number])]
    say = f"printf '\\n%s\\n' {word}; printf '\\n%s\\n' {word} >&2"
    tests = [*lines[start + 1 : ends[0]], _EXIT] if ends else lines[start + 1 :]
    return "\n".join([*lines[: max(start, 0)], say, *tests, ""])


async def _read(task: SweTask, ran: ExecResult, word: str, limit_s: float) -> Report:
    streams = [stream.decode("utf-8", "replace").partition(f"\n{word}\n") for stream in (ran.stdout, ran.stderr)]
    has_started = all(found for _, found, _ in streams)
    # One stream after the other: what one prints can't get into the middle of the other's lines.
    text = "\n".join(after if has_started else before for before, _, after in streams)
    report = await _parsed(task, text) if has_started else Report(statuses={})
    return replace(
        report,
        problem=_problem(task, ran, report.statuses, limit_s, has_started=has_started),
        output=text[-MAX_OUTPUT_CHARACTERS:],
        parts={**report.parts, "tests_timed_out": float(ran.timed_out)},
    )


async def _parsed(task: SweTask, text: str) -> Report:
    assert task.log_parser is not None
    if log_parsers.is_ours(task.log_parser):
        return log_parsers.parse(task.log_parser, text)
    return await foreign.parse(task, text)


def _problem(
    task: SweTask, ran: ExecResult, statuses: Mapping[str, Status], limit_s: float, *, has_started: bool
) -> str | None:
    """Why the results aren't whole, or aren't to be believed; None: exit code and log agree."""
    left_out = f"; {ran.num_left_out_bytes} bytes of the log were left out" if ran.num_left_out_bytes else ""
    if ran.timed_out:
        return f"the tests took longer than {limit_s:.3g} s"
    if ran.out_of_memory:
        return "the tests used up the box's memory"
    if not has_started:
        return f"the eval script ended before the tests, with exit code {ran.exit_code}{left_out}"
    if not statuses and not task.fail_only:
        return f"the log names no test; the exit code is {ran.exit_code}{left_out}"
    if task.expected is not None:
        return None  # the whole map is compared
    found = set(statuses.values())
    if ran.exit_code and not found & {*FAILURES, "xpassed"}:
        return f"the tests ended with exit code {ran.exit_code}, but the log names no failure{left_out}"
    if not ran.exit_code and found & set(FAILURES):
        return "the tests ended with exit code 0, but the log names failures"
    return None
