"""SWE-bench from version 5 on: a record says itself how it is tested."""

from __future__ import annotations

import re
from typing import Any

from agentrl.envs.swe_bench.records import swe_bench
from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.paths import are_of_pytest, files_of
from agentrl.envs.swe_bench.records.row import Row

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
EVAL_TYPES = ("pass_and_fail", "fail_only")


def read(row: Row) -> dict[str, Any]:
    """Fields of a task."""
    if row.get("image_assets"):
        raise row.wrong("image_assets", "its tests need pictures, which can't be brought along; leave the record out")
    fields = swe_bench.fields(row) | {
        "image": row.text("image"),
        "eval_script": row.text("eval_script"),
        "log_parser": row.text("log_parser"),
        "fail_only": _eval_type(row) == "fail_only",
    }
    if isinstance(row.get("timeout_s"), (int, float)):
        fields["timeout_s"] = row.values["timeout_s"]
    return fields | _how_to_test(fields)


def _how_to_test(fields: dict[str, Any]) -> dict[str, Any]:
    """Where pytest runs the tests our plugin sees the results themselves, which no print can forge."""
    tests = [*fields["fail_to_pass"], *fields["pass_to_pass"]]
    files = files_of(tests)
    test_part = fields["eval_script"].partition(START)[2].partition(END)[0]
    # Tests that are hidden in a file which no test is named after: their names aren't paths from the top.
    has_own_paths = set(files_of(fields["fail_to_pass"])) <= set(fields["test_files"])
    if fields["fail_only"] or not are_of_pytest(tests) or not has_own_paths or not _is_pytest(test_part):
        return {"reports_by": "log"}
    return {
        "reports_by": "pytest",
        "test_arguments": files,
        "test_files": tuple(dict.fromkeys((*fields["test_files"], *files))),
        "python": _python(fields["eval_script"]),
    }


def _is_pytest(commands: str) -> bool:
    return bool(re.search(r"\b(pytest|py\.test)\b", commands)) and not re.search(r"\btox\b", commands)


def _python(script: str) -> str:
    environment = re.search(r"^\s*conda activate (\S+)", script, re.M)
    return f"/opt/miniconda3/envs/{environment[1]}/bin/python" if environment else "python3"


def _eval_type(row: Row) -> str:
    value = row.text("eval_type")
    if value not in EVAL_TYPES:
        raise row.wrong("eval_type", f"{value!r} is unknown; it is {' or '.join(EVAL_TYPES)}")
    return value


FORMAT = Format(
    name="swe-bench-5",
    read=read,
    keys=(
        *("instance_id", "repo", "base_commit", "problem_statement", "test_patch"),
        *("FAIL_TO_PASS", "PASS_TO_PASS", "image", "eval_script", "log_parser", "eval_type"),
    ),
)
