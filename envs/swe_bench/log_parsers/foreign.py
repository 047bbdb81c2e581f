"""Logs of forms that only the package swebench can read. It reads them in a process of its own, with an interpreter
of its own where one is named: importing it takes seconds and 180 MB."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.envs.swe_bench.log_parsers import PARSERS, PREFIX
from agentrl.envs.swe_bench.prepare import TaskError
from agentrl.envs.swe_bench.task import SweTask
from agentrl.envs.swe_bench.verdict import Report, Status

INTERPRETER = "AGENTRL_SWEBENCH_PYTHON"
"""The variable that names a Python which has swebench."""
PROGRAM = Path(__file__).with_name("swebench_program.py").read_text(encoding="utf-8")
TIMEOUT_S = 180.0
MAX_WORDS_CHARACTERS = 500
PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER")
STATUSES: dict[str, Status] = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
}


class LogParserError(TaskError):
    """A task whose log can't be read here. It names the task; nothing is measured."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    statuses: dict[str, str] | None = None
    known: list[str] = []
    """The parsers that swebench has, where the one that was asked for isn't among them."""


def interpreter(task: SweTask) -> str:
    """The Python that has swebench. Raises LogParserError."""
    if named := os.environ.get(INTERPRETER):
        return named
    if importlib.util.find_spec("swebench"):
        return sys.executable
    raise LogParserError(
        f"{task.id}: the log parser {task.log_parser!r} is unknown. These are built in: {', '.join(sorted(PARSERS))}. "
        f"swebench has more: pip install 'agentrl[swebench]', or name a Python that has it in {INTERPRETER}"
    )


async def parse(task: SweTask, text: str) -> Report:
    """What swebench's parser of the task's name says of a log. Raises LogParserError.

    The statuses are swebench's: of a test that is told of twice, the last one.
    """
    request = {
        "parser": f"{PREFIX}{(task.log_parser or '').removeprefix(PREFIX)}",
        "instance_id": task.id,
        "repo": task.repo,
        "version": str(task.metadata.get("version", "")),
        "text": text,
    }
    printed = await _asked(task, json.dumps(request).encode())
    try:
        answer = _Answer.model_validate_json(printed)
    except ValidationError as error:
        raise LogParserError(f"{task.id}: swebench answered {printed[:MAX_WORDS_CHARACTERS]!r}") from error
    if answer.statuses is None:
        raise LogParserError(
            f"{task.id}: neither we nor swebench have the log parser {task.log_parser!r}. These are built in: "
            f"{', '.join(sorted(PARSERS))}. swebench's: {', '.join(sorted(answer.known))}"
        )
    known = {test: STATUSES[status] for test, status in answer.statuses.items() if status in STATUSES}
    return Report(statuses=known, num_unknown_lines=len(answer.statuses) - len(known))


async def _asked(task: SweTask, request: bytes) -> bytes:
    python = interpreter(task)
    # swebench loads a file `.env` of the folder that it is started in.
    with tempfile.TemporaryDirectory(prefix="agentrl-swebench-") as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                python, "-c", PROGRAM, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=PIPE,
                env={name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ},
            )  # fmt: skip
        except OSError as error:
            raise LogParserError(f"{task.id}: {python} can't be started ({error}); see {INTERPRETER}") from error
        try:
            printed, complained = await asyncio.wait_for(process.communicate(request), TIMEOUT_S)
        except TimeoutError as error:
            raise LogParserError(f"{task.id}: swebench took longer than {TIMEOUT_S:.0f} s to read the log") from error
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        words = " ".join(complained.decode("utf-8", "replace").split())[-MAX_WORDS_CHARACTERS:]
        raise LogParserError(f"{task.id}: {python} couldn't read the log with swebench: {words}")
    return printed
