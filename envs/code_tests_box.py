"""Has code tested in a box: what is asked of the judge there, and what its answer means."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from agentrl.sandbox import ExecResult, Sandbox

SOURCE = Path(__file__).with_name("code_tests_judge.py").read_text(encoding="utf-8")
MAX_LINE_BYTES = 4096
GRACE_S = 2.0
"""For the judge to end by itself."""
MAX_WORDS_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Code, the function in it that is tested, and how long that may take."""

    prompt: str
    """What the code may go on with; what it defines besides the function, the tests may use."""
    entry_point: str
    code: str
    tests: list[str]
    test_timeout_s: float
    total_timeout_s: float
    memory_bytes: int
    """Of the process with the code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What became of each test."""

    passed: list[bool]
    messages: list[str]
    """Why it failed; empty where it passed."""

    @property
    def share(self) -> float:
        """Of the tests that passed."""
        return sum(self.passed) / len(self.passed)


class _Line(BaseModel):
    test: int
    passed: bool
    message: str


async def try_code(box: Sandbox, trial: Trial) -> Verdict:
    """Run the tests. A test of which the judge doesn't tell has failed: the code kept it from that.

    Raises RuntimeError where the judge didn't even start, and SandboxError.
    """
    word = secrets.token_hex(16)
    fields = {name: getattr(trial, name) for name in Trial.__dataclass_fields__}
    ran = await box.exec(
        ["python3", "-I", "-c", SOURCE, "judge"],
        stdin=json.dumps({"word": word, "source": SOURCE, **fields}).encode(),
        timeout_s=trial.total_timeout_s + GRACE_S,
        max_output_bytes=(len(trial.tests) + 2) * MAX_LINE_BYTES,
    )
    signed = [line[len(word) :] for line in ran.stdout.decode("utf-8", "replace").splitlines() if line.startswith(word)]
    if not signed:
        raise RuntimeError(f"the tests could not be run: {_words(ran)}")
    return _verdict(signed[1:], len(trial.tests))


def _verdict(lines: list[str], num_tests: int) -> Verdict:
    passed, messages = (
        [False] * num_tests,
        ["it was not run: the time was up, or the code ended everything"] * num_tests,
    )
    for text in lines:
        try:
            line = _Line.model_validate_json(text)
            passed[line.test], messages[line.test] = line.passed, line.message
        except (ValidationError, IndexError):  # cut off in the middle
            continue
    return Verdict(passed=passed, messages=messages)


def _words(ran: ExecResult) -> str:
    text = " ".join(ran.stderr.decode("utf-8", "replace").split())[-MAX_WORDS_CHARACTERS:]
    return text or f"exit code {ran.exit_code}"
