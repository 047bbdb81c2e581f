"""SWE-smith: `patch` brings the fault into an image without it, and is what has to be undone."""

from __future__ import annotations

from typing import Any

from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.paths import are_of_pytest, files_of, touched
from agentrl.envs.swe_bench.records.row import Row

PYTHON = "/opt/miniconda3/envs/testbed/bin/python"


def read(row: Row) -> dict[str, Any]:
    """Fields of a task. Its tests are in the repository; those that fail are hidden from the agent."""
    fail_to_pass, pass_to_pass = row.names("FAIL_TO_PASS"), row.names("PASS_TO_PASS")
    tests = (*fail_to_pass, *pass_to_pass)
    if not are_of_pytest(tests):
        odd = next(name for name in tests if not are_of_pytest([name]))
        raise row.wrong("FAIL_TO_PASS", f"{odd!r} is no test of pytest; of SWE-smith only Python can be graded")
    patch, hidden = row.text("patch"), files_of(fail_to_pass)
    if faulty := sorted(set(touched(patch)) & set(hidden)):
        raise row.wrong("patch", f"it changes {faulty[0]}, which has the tests; leave the record out")
    return {
        "id": row.text("instance_id"),
        "repo": row.text("repo", or_empty=True),
        "problem_statement": row.text("problem_statement"),
        "image": _image(row.text("image_name")),
        "setup_patch": patch,
        "gold_patch": patch,
        "gold_is_reversed": True,
        "test_files": files_of(tests),
        "hidden_files": hidden,
        "test_arguments": files_of(tests),
        "python": PYTHON,
        "fail_to_pass": fail_to_pass,
        "pass_to_pass": pass_to_pass,
    }


def _image(name: str) -> str:
    """As it is published: older records leave out whose it is, and names have no double underscore."""
    name = name.replace("__", "_1776_").lower()
    return name if "/" in name else f"jyangballin/{name}"


FORMAT = Format(
    name="swe-smith",
    read=read,
    keys=("instance_id", "image_name", "patch", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS"),
    not_keys=("base_commit", "test_patch"),
)
