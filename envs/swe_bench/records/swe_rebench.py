"""SWE-rebench and SWE-rebench-V2: SWE-bench's form, and how to install and test in the record."""

from __future__ import annotations

from typing import Any

from agentrl.envs.swe_bench.records import swe_bench
from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.paths import touched
from agentrl.envs.swe_bench.records.row import Row
from agentrl.envs.swe_bench.records.swe_bench_5 import END, START


def read(row: Row) -> dict[str, Any]:
    """Fields of a task. Its own command runs the tests, and its own parser reads what that prints."""
    config = row.mapping("install_config")
    parser, commands = config.get("log_parser"), _lines(row, config.get("test_cmd"))
    if not isinstance(parser, str) or not parser:
        raise row.wrong("install_config", "log_parser is missing; say how the output of the tests is read")
    folder = _workdir(row)
    return swe_bench.fields(row) | {
        "image": row.text("docker_image" if row.values.get("docker_image") else "image_name"),
        "workdir": folder,
        "reports_by": "log",
        "log_parser": parser,
        "eval_script": "\n".join([f"cd {folder}", f": '{START}'", *commands, f": '{END}'", ""]),
    }


def _lines(row: Row, commands: Any) -> list[str]:
    lines = [commands] if isinstance(commands, str) else commands
    if not isinstance(lines, list) or not lines or not all(isinstance(line, str) and line for line in lines):
        raise row.wrong("install_config", "test_cmd is missing; write the line that runs the tests, or several")
    if len(lines) == 1 and "pytest" in lines[0]:
        return [f"{lines[0]} {' '.join(touched(row.text('test_patch')))}"]
    return lines


def _workdir(row: Row) -> str:
    return f"/{row.text('repo').rsplit('/', 1)[-1]}"


FORMAT = Format(
    name="swe-rebench",
    read=read,
    keys=(
        *("instance_id", "repo", "base_commit", "problem_statement", "test_patch"),
        *("FAIL_TO_PASS", "PASS_TO_PASS", "install_config"),
    ),
)
