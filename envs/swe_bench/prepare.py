"""Brings a box to what the agent starts from: the same tree in the agent's box and in the grader's."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.envs.swe_bench.bundle import pytest_bundle
from agentrl.envs.swe_bench.inside.repository import NO_GIT
from agentrl.envs.swe_bench.task import SweTask
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import ExecResult, Sandbox

SOURCE = (Path(__file__).parent / "inside" / "repository.py").read_text(encoding="utf-8")
WITHOUT_SITE = ("-IS", "-c")
MAX_PATHS_BYTES = 64 * 1024**2
"""Of what a program in the box tells, such as the paths of a large repository."""
MAX_WORDS_CHARACTERS = 500
OFFER_PYTEST = """
import os, site, sys
folder = site.getusersitepackages()
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "agentrl-pytest.pth"), "w") as file:
    file.write(sys.argv[1] + "\\n")
"""
HAS_PYTEST = "import sys; from importlib.util import find_spec; sys.exit(0 if find_spec('pytest') else 9)"
NO_PYTEST = 9


class TaskError(RuntimeError):
    """A task that can't be set up or graded as it is. It names the task; nothing is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The tree that the agent starts from."""

    commit: str
    """The same for the same tree, on every machine."""
    full: str
    """The tree with the hidden files in it; only in a box without an agent."""
    ignored: Sequence[str]
    """What git ignores and was there before the agent: paths, and folders with a slash at their end."""
    copy: str | None
    """Our own copy of the repository in the box; None: there is none."""


async def prepare(box: Sandbox, task: SweTask, deadline: float, *, for_agent: bool) -> Baseline:
    """Set the tree up and make it one commit without a past. In an agent's box nothing of hidden files is left.

    Raises SandboxError where the box lacks git, and TaskError.
    """
    setup = {"base_commit": task.base_commit, "setup_patch": encoded(task.setup_patch)}
    if task.setup_commands:
        await ask(box, task, {"do": "start", **setup}, deadline)
        setup = {"base_commit": None, "setup_patch": ""}
    for line in task.setup_commands:
        ran = await box.exec(line, timeout_s=time_left_s(deadline))
        if ran.exit_code != 0 or ran.timed_out:
            raise TaskError(f"{task.id}: the set-up command {line!r} failed: {words(ran)}")
    copy = f"/tmp/.agentrl-{secrets.token_hex(8)}" if for_agent else None
    request: dict[str, Any] = {"do": "commit", "keep_hidden": not for_agent, "copy": copy, **setup}
    request |= {"hidden_files": task.hidden_files, "test_files": task.test_files}
    told, _ = await ask(box, task, request, deadline)
    return Baseline(commit=told["commit"], full=told["full"], ignored=told["ignored"], copy=copy)


async def offer_pytest(box: Sandbox, task: SweTask, deadline: float) -> None:
    """Where the task's Python has no pytest, it gets ours, for `python -m pytest`; outside the repository."""
    path = await lacking_pytest(box, task, deadline)
    if path:
        await box.exec([task.python, "-c", OFFER_PYTEST, path], timeout_s=time_left_s(deadline), cwd="/")


async def lacking_pytest(box: Sandbox, task: SweTask, deadline: float) -> str:
    """The path of our pytest in the box where the task's Python has none; else empty.

    Raises SandboxError where that Python isn't there.
    """
    ran = await box.exec([task.python, "-c", HAS_PYTEST], timeout_s=time_left_s(deadline), cwd="/")
    if ran.exit_code == 0:
        return ""
    if ran.exit_code != NO_PYTEST:
        raise SandboxError(
            f"{task.id}: {task.python} doesn't run in the box: {words(ran)}; name the interpreter that has the "
            "repository's packages as the task's `python`",
            SandboxFault.UNAVAILABLE,
        )
    path = f"/tmp/.agentrl-pytest-{secrets.token_hex(8)}.zip"
    await box.write(path, await asyncio.to_thread(pytest_bundle))
    return path


async def ask(
    box: Sandbox, task: SweTask, request: dict[str, Any], deadline: float, *, max_bytes: int = MAX_PATHS_BYTES
) -> tuple[dict[str, Any], bytes]:
    """Have the program in the box do something to the repository: what it tells, and the bytes after it.

    Raises SandboxError where git isn't there, TaskError where it refuses or takes too long.
    """
    ran = await box.exec(
        ["python3", *WITHOUT_SITE, SOURCE],
        stdin=json.dumps(request).encode(),
        timeout_s=time_left_s(deadline),
        max_output_bytes=max_bytes,
    )
    if ran.exit_code in (NO_GIT, 127):
        lacks = "git" if ran.exit_code == NO_GIT else "python3"
        raise SandboxError(f"{task.id}: {lacks} isn't there in {_where(task)}", SandboxFault.UNAVAILABLE)
    if ran.exit_code != 0 or ran.timed_out or ran.num_left_out_bytes:
        raise TaskError(f"{task.id}: {request['do']}: {words(ran)}")
    line, _, content = ran.stdout.partition(b"\n")
    told: dict[str, Any] = json.loads(line)
    return told, content


def encoded(text: str | bytes) -> str:
    """For a request, as base64; a patch isn't always text."""
    content = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return base64.b64encode(content).decode()


def time_left_s(deadline: float) -> float:
    """At least a moment, so that what comes too late ends as a time-out."""
    return max(0.1, deadline - time.monotonic())


def words(ran: ExecResult) -> str:
    """How a command ended, for a message."""
    text = " ".join(ran.text.split())[-MAX_WORDS_CHARACTERS:]
    return f"it took longer than {ran.seconds:.3g} s" if ran.timed_out else text or f"exit code {ran.exit_code}"


def _where(task: SweTask) -> str:
    if task.image is not None:
        return f"the image {task.image}: build one that has it on it, e.g. FROM {task.image}, RUN apt-get install"
    return "the box, which has this machine's programs: apt-get install it here, or give the task an image"
