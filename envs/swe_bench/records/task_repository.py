"""A repository of tasks, as swebench 5 keeps them: `sweb.yaml`, and a folder for each task.

tasks/<id>/: task.yaml, tests.json, problem_statement.md, gold.patch, test.patch, eval.sh, and hints.md where there are
hints. Tasks whose split `sweb.yaml` doesn't name, e.g. deprecated ones, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.envs.swe_bench.records.row import Row
from agentrl.errors import ConfigError

CONFIG = "sweb.yaml"
TASK = "task.yaml"
TESTS = "tests.json"
FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}
HINTS = "hints.md"


def rows(folder: Path, faults: list[ConfigError]) -> Iterator[Row]:
    """The published tasks by their ids; what is wrong with one goes into `faults`, with the file.

    Raises ConfigError where there are none, or nobody can tell which are published.
    """
    splits = _yaml(folder / CONFIG).get("splits") or ["test"]
    found = sorted(path.parent for path in folder.glob(f"tasks/*/{TASK}"))
    if not found:
        raise ConfigError(f"{folder}: {CONFIG} is there, but no tasks/<id>/{TASK}")
    for task in found:
        try:
            values = _yaml(task / TASK)
            record = values | _rest(task) if values.get("split") in splits else None
        except ConfigError as fault:
            faults.append(fault)
        else:
            if record is not None:
                yield Row(where=str(task), values=record, folder=folder)


def _rest(task: Path) -> dict[str, Any]:
    hints = {"hints_text": _text(task / HINTS)} if (task / HINTS).is_file() else {}
    try:
        tests = json.loads(_text(task / TESTS))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{task / TESTS}: no JSON: {error}") from None
    if not isinstance(tests, dict):
        raise ConfigError(f"{task / TESTS}: write one object, with FAIL_TO_PASS and PASS_TO_PASS")
    return {key: _text(task / name) for key, name in FILES.items()} | hints | tests


def _text(path: Path) -> str:
    """The line ends stay: a patch may be of a file with CRLF."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8; convert it") from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}; each task needs it") from None


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: write keys and values")
    return values
