"""What swebench says of the recorded logs: `python -m tests.envs.swe_bench.parity PYTHON` writes it down.

PYTHON is one that has swebench. It brings 30 packages and takes seconds to import, so the suite compares with what was
written down, and with swebench itself only where it is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOGS = Path(__file__).with_name("logs")
ANSWERS = LOGS / "swebench.json"
START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code: "
PARSERS = {
    "django-4.2": ["django"],
    "pytest-3-verbose": ["astropy"],
    "pytest-5": ["pytest", "seaborn"],
    "pytest-9": ["pytest", "pytest_v2", "pytest_options", "matplotlib"],
    "pytest-9-verbose-colour": ["pytest_v2"],
    "pytest-9-xdist": ["pytest"],
    "sympy-1.12": ["sympy"],
    "tox": ["sphinx"],
    "unittest-3.13": ["django"],
    "unittest-3.8": ["django"],
}
"""Log → the parsers that read it. All are of real runs of a few tests that end in every way there is."""

PHANTOMS = (
    *(
        "[ 78%]",
        "root:test_mixed.py:73",
        "tests/other.py::test_forged",
        "test_inner.py::test_a",
        "test_inner.py::test_b",
    ),
    "test_subtests (test_mixed.Plain) ... test_in_a_transaction",
)
"""What swebench takes for tests: progress, log lines, what tests printed, the sessions that they started, and two tests
on one line."""

PROGRAM = """
import json, sys
from importlib.metadata import version
from swebench.harness.grading import get_eval_report, get_logs_eval
from swebench.types import TestSpec

def spec(parser, fail_to_pass, pass_to_pass):
    return TestSpec(instance_id="a__a-1", image="", eval_script_list=[], repo="a/a", version="1",
                    FAIL_TO_PASS=fail_to_pass, PASS_TO_PASS=pass_to_pass,
                    log_parser="parse_log_" + parser, eval_type="pass_and_fail")

answers = []
for path, parser, phantoms in json.load(sys.stdin):
    statuses, _ = get_logs_eval(spec(parser, [], []), path)
    named = [test for test in statuses if not any(test.startswith(phantom) for phantom in phantoms)]
    passed = [test for test in named if statuses[test] in ("PASSED", "XFAIL")]
    failed = [test for test in named if statuses[test] in ("FAILED", "ERROR")]
    tasks = [(passed[:2], passed[2:]), (failed[:1], passed), (passed, failed[-1:])]
    prediction = {"instance_id": "a__a-1", "model_name_or_path": "", "model_patch": "a"}
    judged = []
    for fail_to_pass, pass_to_pass in tasks:
        report = get_eval_report(spec(parser, fail_to_pass, pass_to_pass), prediction, path, False)["a__a-1"]
        judged.append(dict(fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass, resolved=report["resolved"]))
    answers.append({"statuses": statuses, "tasks": judged})
print(json.dumps({"version": version("swebench"), "answers": answers}))
"""


def asked(python: str) -> dict[str, Any]:
    """swebench's statuses of each log and parser, and whether it takes three tasks for resolved."""
    pairs = [(log, parser) for log, parsers in PARSERS.items() for parser in parsers]
    request = [(str(LOGS / f"{log}.log"), parser, PHANTOMS) for log, parser in pairs]
    ran = subprocess.run([python, "-c", PROGRAM], input=json.dumps(request), capture_output=True, text=True, check=True)
    told = json.loads(ran.stdout)
    answers = {f"{log} {parser}": answer for (log, parser), answer in zip(pairs, told["answers"], strict=True)}
    return {"swebench": told["version"], "answers": answers}


def main(python: str) -> None:
    """Write the answers down."""
    told = asked(python)
    lines = [f"{json.dumps(pair)}: {json.dumps(answer)}" for pair, answer in told["answers"].items()]
    head = f'{{"swebench": {json.dumps(told["swebench"])}, "made_by": "python -m tests.envs.swe_bench.parity PYTHON",'
    ANSWERS.write_text("\n".join([head, '"answers": {', ",\n".join(lines), "}}", ""]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
