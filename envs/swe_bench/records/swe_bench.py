"""SWE-bench as it was until version 5, Lite and Verified too: how to test follows from the repository."""

from __future__ import annotations

from typing import Any

from agentrl.envs.swe_bench import classic
from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.paths import touched
from agentrl.envs.swe_bench.records.row import Row


def fields(row: Row) -> dict[str, Any]:
    """What all datasets have in common that took over the form; `image` and how to test are missing."""
    test_patch = row.text("test_patch")
    return {
        "id": row.text("instance_id"),
        "repo": row.text("repo"),
        "problem_statement": row.text("problem_statement"),
        "base_commit": row.text("base_commit"),
        "gold_patch": row.text("patch", or_empty=True),
        "test_patch": test_patch,
        "test_files": touched(test_patch),
        "fail_to_pass": row.names("FAIL_TO_PASS"),
        "pass_to_pass": row.names("PASS_TO_PASS"),
    }


def how_to_test(row: Row) -> dict[str, Any]:
    """For records without a script: what is known of the repository."""
    version = str(row.get("version") or "")
    return classic.how_to_test(row.text("repo"), version, touched(row.text("test_patch")))


def read(row: Row) -> dict[str, Any]:
    """Fields of a task."""
    return fields(row) | how_to_test(row) | {"image": image(row.text("instance_id"))}


def image(instance_id: str) -> str:
    """The name under which the image of a task is published."""
    return f"swebench/sweb.eval.x86_64.{instance_id.replace('__', '_1776_')}:latest".lower()


FORMAT = Format(
    name="swe-bench",
    read=read,
    keys=(
        *("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "version"),
        *("FAIL_TO_PASS", "PASS_TO_PASS", "environment_setup_commit"),
    ),
)
