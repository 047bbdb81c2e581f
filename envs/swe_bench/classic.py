"""How a repository of SWE-bench's older records is tested: they don't say."""

from __future__ import annotations

from typing import Any

PYTHON = "/opt/miniconda3/envs/testbed/bin/python"


def how_to_test(repo: str, version: str, test_files: tuple[str, ...]) -> dict[str, Any]:
    """Fields of a task."""
    return {"reports_by": "pytest", "test_arguments": test_files, "python": PYTHON}
