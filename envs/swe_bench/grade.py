"""Measures a patch in a fresh box: the same tree, the patch without what it may not change, the task's tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentrl.envs.swe_bench import log_parsers, script
from agentrl.envs.swe_bench.patch import Change, normalised, not_allowed
from agentrl.envs.swe_bench.prepare import ask, encoded, lacking_pytest, prepare
from agentrl.envs.swe_bench.run_tests import run_tests
from agentrl.envs.swe_bench.task import SweTask
from agentrl.envs.swe_bench.verdict import Report, Verdict, judge
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import Sandbox

_TOUCHED = re.compile(r"^(?:--- a/|\+\+\+ b/|rename (?:from|to) )([^\t\n]+)", re.M)
MAX_SHOWN_FAILURES = 20
MAX_SHOWN_CHARACTERS = 6000
"""Of what the tests printed: its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the tests say of a patch, and what came before them."""

    report: Report
    verdict: Verdict
    applied_by: str | None
    """The program that applied it; None: none could."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Path → why its change was taken back."""
    notes: tuple[str, ...] = ()

    def words(self) -> str:
        """For a person who asks why."""
        report, failures = self.report, list(self.verdict.failures.items())
        lines = [*self.notes, *(f"left out: {path}: {why}" for path, why in self.left_out.items())]
        lines += [f"tampered: {report.tampered}"] if report.tampered else []
        lines += [report.problem] if report.problem else []
        lines += [f"{end}: {test}" for test, end in failures[:MAX_SHOWN_FAILURES]]
        lines += [f"and {len(failures) - MAX_SHOWN_FAILURES} more"] if len(failures) > MAX_SHOWN_FAILURES else []
        head = "resolved" if self.verdict.resolved else "not resolved"
        return "\n".join([head, *lines, "", report.output[-MAX_SHOWN_CHARACTERS:]]).rstrip()


async def measure(box: Sandbox, task: SweTask, patch: bytes, baseline: str | None, deadline: float) -> Measured:
    """Grade a patch. `baseline`: the commit that the agent started from, where it is known.

    Raises SandboxError where the box can't do it, and TaskError where the task is at fault: nothing was measured then.
    """
    bundle = await lacking_pytest(box, task, deadline) if task.reports_by == "pytest" else None
    tree = await prepare(box, task, deadline, for_agent=False)
    notes = ("the tree is not the one that the agent had",) if baseline not in (None, tree.commit) else ()
    told, _ = await ask(box, task, {"do": "apply", "patch": encoded(normalised(patch))}, deadline)
    if told["applied_by"] is None:
        report = Report(statuses={}, problem=f"the patch doesn't apply: {told['why']}")
        return Measured(report=report, verdict=judge(task, report), applied_by=None, notes=notes)
    changes = [Change.of(change) for change in told["changed"]]
    left_out = not_allowed(
        changes, files=told["files"], test_files=task.test_files, allowed=_TOUCHED.findall(task.gold_patch)
    )
    files = {"undone": list(left_out), "test_files": task.test_files, "full": tree.full}
    await ask(box, task, {"do": "finish", "test_patch": encoded(task.test_patch), **files}, deadline)
    kept = [change.path for change in changes if change.path not in left_out]
    try:
        if bundle is not None:
            report = await run_tests(box, task, bundle, kept, deadline)
            report = replace(report, statuses=log_parsers.as_written(task.log_parser, report.statuses))
        else:
            report = await script.run(box, task, deadline)
    except SandboxError as error:
        # The box has answered until here, and only now runs what the agent wrote.
        if error.kind not in (SandboxFault.DIED, SandboxFault.CHANNEL):
            raise
        report = Report(statuses={}, problem=f"the code under test ended the box: {error}")
    return Measured(
        report=report, verdict=judge(task, report), applied_by=told["applied_by"], left_out=left_out, notes=notes
    )
