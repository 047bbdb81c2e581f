"""Our own form: a task as JSON, whose keys are the fields of `SweTask`."""

from __future__ import annotations

from typing import Any

from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.row import Row


def read(row: Row) -> dict[str, Any]:
    """The values as they are; `format` stays what the task was read from at first."""
    return {key: value for key, value in row.values.items() if key != "source"}


FORMAT = Format(name="agentrl", read=read, keys=("id", "format", "problem_statement"))
