"""R2E-Gym: all results of the hidden tests must be as recorded, failures too.

The tests are in the record, and in the image as well: there they are removed before the agent starts. Where the box's
user can't do that the task is refused, since the agent could read them.
"""

from __future__ import annotations

import re
from typing import Any

from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.paths import new_file
from agentrl.envs.swe_bench.records.row import Row
from agentrl.envs.swe_bench.records.swe_bench_5 import END, START

STATUSES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped"}
COLOUR = re.compile(r"\x1b\[\d+m|\\u001b\[\d+m")
TESTS, SCRIPT = "r2e_tests", "run_tests.sh"
EVAL = f"cd /testbed\n: '{START}'\nbash {SCRIPT}\n: '{END}'\n"


def read(row: Row) -> dict[str, Any]:
    """Fields of a task."""
    image = row.text("docker_image")
    statement = row.text("problem_statement")
    inner = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.S)
    files = _files(row)
    return {
        "id": image,
        "repo": row.text("repo_name"),
        "problem_statement": inner[1].strip() if inner else statement,
        "image": image,
        "setup_commands": (f"rm -rf {TESTS} /{TESTS}",),
        "test_patch": "".join(new_file(path, content) for path, content in files.items()),
        "test_files": (SCRIPT, *files),
        "reports_by": "log",
        "eval_script": EVAL,
        "log_parser": "r2e_gym",
        "expected": _expected(row),
    }


def _files(row: Row) -> dict[str, str]:
    """Path → content of the hidden tests."""
    key = "execution_result_content"
    ran = row.mapping(key)
    names, contents = _texts(ran.get("test_file_names")), _texts(ran.get("test_file_codes"))
    if not names or len(names) != len(contents):
        raise row.wrong(key, "write as many test_file_names as test_file_codes, all of them texts")
    return {f"{TESTS}/{name.rsplit('/', 1)[-1]}": content for name, content in zip(names, contents, strict=True)}


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def _expected(row: Row) -> dict[str, str]:
    """Test → status; the names were recorded with colours, and with what pytest prints behind them."""
    found = {}
    for name, status in row.mapping("expected_output_json").items():
        if status not in STATUSES:
            raise row.wrong("expected_output_json", f"{name}: {status!r} is none of {', '.join(STATUSES)}")
        found[COLOUR.sub("", name).split(" - ")[0]] = STATUSES[status]
    found.pop("", None)
    return found


FORMAT = Format(
    name="r2e-gym",
    read=read,
    keys=("docker_image", "repo_name", "problem_statement", "expected_output_json", "execution_result_content"),
)
