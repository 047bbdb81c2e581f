"""Datasets that come with the package."""

from pathlib import Path

MINI = Path(__file__).resolve().parent / "mini"
"""Twelve tasks in three small libraries, a repository of tasks in SWE-bench's form."""
