"""R2E-Gym: hidden tests lie in the image, and all their results must be as recorded, failures too."""

from __future__ import annotations

import re
from typing import Any

from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.row import Row
from agentrl.envs.swe_bench.records.swe_bench_5 import END, START

STATUSES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped"}
COLOUR = re.compile(r"\x1b\[\d+m|\\u001b\[\d+m")
TESTS, SCRIPT = "r2e_tests", "run_tests.sh"
EVAL = f"""cd /testbed
[ -e {TESTS} ] || ln -s /{TESTS} {TESTS}
: '{START}'
bash {SCRIPT}
: '{END}'
"""


def read(row: Row) -> dict[str, Any]:
    """Fields of a task."""
    image = row.text("docker_image")
    statement = row.text("problem_statement")
    inner = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.S)
    return {
        "id": image,
        "repo": row.text("repo_name"),
        "problem_statement": inner[1].strip() if inner else statement,
        "image": image,
        "test_files": (SCRIPT, TESTS, f"/{TESTS}"),
        "hidden_files": (SCRIPT, TESTS, f"/{TESTS}"),
        "reports_by": "log",
        "eval_script": EVAL,
        "log_parser": "r2e_gym",
        "expected": _expected(row),
    }


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
    name="r2e-gym", read=read, keys=("docker_image", "repo_name", "problem_statement", "expected_output_json")
)
