"""SWE-Gym: SWE-bench's form for other repositories, with images under names of its own."""

from __future__ import annotations

from typing import Any

from agentrl.envs.swe_bench.records import swe_bench
from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.row import Row


def read(row: Row) -> dict[str, Any]:
    """Fields of a task."""
    image = f"xingyaoww/sweb.eval.x86_64.{row.text('instance_id').replace('__', '_s_')}:latest".lower()
    return swe_bench.fields(row) | swe_bench.how_to_test(row) | {"image": image}


FORMAT = Format(
    name="swe-gym",
    read=read,
    keys=(
        *("instance_id", "repo", "base_commit", "problem_statement", "test_patch", "version"),
        *("FAIL_TO_PASS", "PASS_TO_PASS"),
    ),
    not_keys=("environment_setup_commit",),
)
