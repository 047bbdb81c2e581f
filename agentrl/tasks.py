"""The tasks that a config asks for: the environment's, without those of the list `tasks.exclude`.

Everything that plays, trains or measures takes its tasks from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl import plugins
from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import Task

SPLITS = ("train", "held_out")


class Exclusion(BaseModel):
    """A line of the list: a task that can't be trusted, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    """What the task is known by; id and split are for who reads the list."""
    id: str
    split: str
    reason: str


def load_tasks(config: RunConfig, split: str) -> Sequence[Task]:
    """Raises ConfigError where there are none, or all are left out, and where the list can't be read."""
    tasks, excluded = _all_tasks(config, split), excluded_keys(config)
    if not excluded:
        return tasks
    kept = [task for task in tasks if task.key not in excluded]
    if not kept:
        raise ConfigError(f"tasks.exclude={config.tasks.exclude}: all {len(tasks)} {split} tasks are in it")
    return kept


def excluded_keys(config: RunConfig) -> frozenset[str]:
    """Keys of the tasks that are left out. Raises ConfigError with file and line for what isn't such a list."""
    path, sha256 = config.tasks.exclude, config.tasks.exclude_sha256
    return frozenset() if path is None or sha256 is None else _keys(path, sha256)


def num_excluded(config: RunConfig) -> dict[str, int]:
    """Tasks left out of each split. Raises ConfigError where the list names none: it is of other tasks."""
    excluded, counts = excluded_keys(config), {}
    if config.tasks.exclude is None:
        return {}
    for split in SPLITS:
        with suppress(ConfigError):  # a command that needs the split has seen that there are tasks
            counts[split] = sum(task.key in excluded for task in _all_tasks(config, split))
    if excluded and not any(counts.values()):
        raise ConfigError(
            f"tasks.exclude={config.tasks.exclude}: none of its {len(excluded)} tasks is one of environment "
            f"{config.env.name!r} with these options, so nothing would be left out; validate it again, or leave the "
            f"list out"
        )
    return counts


def _all_tasks(config: RunConfig, split: str) -> Sequence[Task]:
    name = config.env.name
    try:
        tasks = plugins.environment(name).tasks(config.env.options, split)
    except AgentRLError:
        raise
    except Exception as error:
        raise ConfigError(f"environment {name!r}: tasks({split!r}) raised {error!r}") from error
    if not tasks:
        raise ConfigError(f"environment {name!r} has no {split} tasks; check its options")
    return tasks


@lru_cache(maxsize=4)
def _keys(path: str, sha256: str) -> frozenset[str]:
    """Read once for each content, which `sha256` stands for."""
    keys = set()
    for number, line in enumerate(Path(path).expanduser().read_bytes().splitlines(), start=1):
        try:
            keys.add(Exclusion.model_validate_json(line).key)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"]))
            raise ConfigError(
                f"tasks.exclude={path}:{number}: {where + ': ' if where else ''}{fault['msg']}; a line is "
                '{"key": …, "id": …, "split": …, "reason": …}'
            ) from None
    return frozenset(keys)
