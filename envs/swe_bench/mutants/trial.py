"""Runs a package's own tests in a box, as a grade does, without and with a fault; and makes a task of what they say."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.envs.swe_bench import sources
from agentrl.envs.swe_bench.mutants.faults import Fault
from agentrl.envs.swe_bench.prepare import TaskError, lacking_pytest, prepare
from agentrl.envs.swe_bench.run_tests import run_tests
from agentrl.envs.swe_bench.task import Source, SweTask
from agentrl.envs.swe_bench.verdict import Report
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxSpec
from agentrl.testing.boxes import CheckBoxes

MAX_FAIL_TO_PASS, MIN_PASS_TO_PASS = 15, 5
TASK_TIMEOUT_S = 120.0
SETUP_S = 120.0
"""For everything but the tests."""
MAX_DOC_CHARACTERS, MAX_SHOWN_LINES = 600, 6
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """What the faults are put into."""

    name: str
    source: Source
    """Its path is absolute."""
    folder: Path
    test_files: tuple[str, ...]
    python_path: tuple[str, ...]

    def task(self, setup_patch: str = "", **fields: object) -> SweTask:
        """A task whose tests are all of the package's."""
        known: dict[str, object] = {
            "id": self.name, "repo": self.name, "format": "agentrl", "problem_statement": "-", "source": self.source,
            "setup_patch": setup_patch, "test_files": self.test_files, "timeout_s": TASK_TIMEOUT_S,
            "python_path": self.python_path,
        }  # fmt: skip
        return SweTask.model_validate(known | fields)


async def tested(boxes: CheckBoxes, task: SweTask, timeout_s: float) -> Report:
    """What the task's tests say before anybody has solved it. Raises SandboxError, TaskError."""
    assert task.source is not None
    base = sources.folder_of(task.source)
    spec = SandboxSpec(base=base, workdir=task.workdir, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    box = await boxes.start(spec, hold_s=timeout_s + SETUP_S)
    assert box is not None
    try:
        deadline = time.monotonic() + timeout_s + SETUP_S
        bundle = await lacking_pytest(box, task, deadline)
        await prepare(box, task, deadline, for_agent=False)
        return await run_tests(box, task, bundle, (), time.monotonic() + timeout_s)
    finally:
        await box.stop()


async def tried(
    boxes: CheckBoxes, package: Package, fault: Fault, before: Mapping[str, str], timeout_s: float
) -> SweTask | str:
    """The task that a fault makes, or why it makes none. `before`: tests that pass without it.

    Raises SandboxError where the machine can't say.
    """
    source = (package.folder / fault.path).read_text(encoding="utf-8")
    if not fault.makes_another_program(source):
        return "makes no other program"
    patch = fault.patch(source)
    try:
        report = await tested(boxes, package.task(patch), timeout_s)
    except TaskError as error:
        return f"can't be set up: {error}"
    except SandboxError as error:
        if error.kind not in (SandboxFault.DIED, SandboxFault.CHANNEL):
            raise
        return "ends its box"
    if report.parts.get("tests_timed_out"):
        return "hangs"
    if report.tampered or report.problem or not before.keys() <= report.statuses.keys():
        return "its tests don't run to their end"
    failing = sorted(test for test in before if report.statuses[test] in ("failed", "error"))
    passing = sorted(test for test in before if report.statuses[test] == "passed")
    if not failing:
        return "no test notices it"
    if len(failing) > MAX_FAIL_TO_PASS or len(passing) < MIN_PASS_TO_PASS:
        return f"{len(failing)} tests fail and {len(passing)} pass"
    return package.task(
        patch,
        id=f"{package.name}__{hashlib.sha256(patch.encode()).hexdigest()[:10]}",
        problem_statement=statement(fault, failing, report.output),
        gold_patch=patch,
        gold_is_reversed=True,
        hidden_files=sorted({test.partition("::")[0] for test in failing} & set(package.test_files)),
        fail_to_pass=failing,
        pass_to_pass=passing,
        metadata={"fault": fault.kind, "where": fault.where},
    )


def statement(fault: Fault, failing: list[str], output: str) -> str:
    """What a user might report: what it should do, and what it does. It doesn't say where in the code the fault is."""
    parts = [f"`{fault.where}` doesn't work as it should."]
    doc = fault.doc.strip().partition("\n\n")[0][:MAX_DOC_CHARACTERS]
    if doc:
        quoted = "\n".join(f"> {line}".rstrip() for line in doc.splitlines())
        parts.append(f"Its documentation says:\n\n{quoted}")
    seen = _seen(failing, output)
    if seen:
        parts.append("What I see instead:\n\n```\n" + "\n".join(seen) + "\n```")
    return "\n\n".join(parts) + "\n"


def _seen(failing: list[str], output: str) -> list[str]:
    """The lines of pytest's that say what was compared, or raised; none with a place in the code."""
    for test in failing:  # the beginning of a long output is cut off
        _, _, text = f"\n\n{output}".partition(f"\n\n{test}\n")
        for other in failing:
            text = text.partition(f"\n\n{other}\n")[0]
        lines = [line[1:].rstrip().removeprefix("      ") for line in text.splitlines() if line.startswith("E ")]
        if lines:
            kept = [_ADDRESS.sub("0x…", line) for line in lines if ".py" not in line]
            return kept[:MAX_SHOWN_LINES]
    return []
