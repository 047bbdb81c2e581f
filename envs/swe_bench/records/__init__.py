"""Records of SWE datasets, normalised: a file or folder → tasks of one form.

Each kind of record is a file here: the keys by which it is recognised, and what its values become.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.envs.swe_bench import sources
from agentrl.envs.swe_bench.records import own, r2e_gym, swe_bench, swe_bench_5, swe_gym, swe_rebench, swe_smith
from agentrl.envs.swe_bench.records.files import rows
from agentrl.envs.swe_bench.records.format import Format
from agentrl.envs.swe_bench.records.row import Row
from agentrl.envs.swe_bench.task import Source, SweTask
from agentrl.errors import ConfigError

FORMATS: tuple[Format, ...] = (
    own.FORMAT,
    r2e_gym.FORMAT,
    swe_rebench.FORMAT,
    swe_bench_5.FORMAT,
    swe_smith.FORMAT,
    swe_bench.FORMAT,
    swe_gym.FORMAT,
)
"""The first that fits a record's keys is taken, so those with more keys of their own come first."""
MAX_SHOWN_KEYS = 20
MAX_SHOWN_FAULTS = 20
LOGGER = logging.getLogger(__name__)


def load(path: str | Path, format: str | None = None) -> list[SweTask]:
    """All tasks of a file or a folder; the keys of the first record tell the format where none is named.

    A record that isn't right is left out with a warning: one of thousands stops no run. Raises ConfigError with file,
    line, id and key where none is right, and for what can't be read at all.
    """
    tasks, faults = read(path, format)
    for fault in faults[:MAX_SHOWN_FAULTS]:
        LOGGER.warning("left out: %s", fault)
    if faults:
        LOGGER.warning("%s: %d of %d records are left out", path, len(faults), len(faults) + len(tasks))
    return tasks


def read(path: str | Path, format: str | None = None) -> tuple[list[SweTask], list[ConfigError]]:
    """As `load`, with what is wrong with the other records in place of warnings."""
    where = Path(path).expanduser()
    tasks: dict[str, SweTask] = {}
    faults: list[ConfigError] = []
    chosen = _named(format) if format else None
    for row in rows(where, faults):
        try:
            chosen = chosen or recognise(row)
            task = _task(row, chosen)
            if task.id in tasks:
                raise row.wrong("id", f"an earlier task is called {task.id!r}, too; leave one out")
        except ConfigError as fault:
            faults.append(fault)
        else:
            tasks[task.id] = task
    if not tasks:
        raise faults[0] if faults else ConfigError(f"{where}: there are no records in it")
    return list(tasks.values()), faults


def recognise(row: Row) -> Format:
    """Raises ConfigError with what each known format lacks."""
    for format in FORMATS:
        if format.fits(row.values):
            return format
    keys = ", ".join(list(row.values)[:MAX_SHOWN_KEYS])
    lacks = "; ".join(f"{format.name}: {', '.join(format.lacks(row.values))}" for format in FORMATS)
    raise ConfigError(
        f"{row.where}: no known kind of record. Its keys: {keys}. What is missing for each, or speaks against it: "
        f"{lacks}. Add what is missing, or name the kind with the option format"
    )


def _named(name: str) -> Format:
    for format in FORMATS:
        if format.name == name:
            return format
    raise ConfigError(f"format={name}: unknown; the kinds of records are {', '.join(each.name for each in FORMATS)}")


def _task(row: Row, format: Format) -> SweTask:
    fields = {"format": format.name} | format.read(row)
    if source := _source(row):
        # The files are here already, so no image is needed; only git's own form has commits to choose from.
        fields |= {"source": source, "image": None}
        if source.kind != "bundle":
            fields["base_commit"] = None
    fields.setdefault("metadata", row.metadata())
    try:
        task = SweTask.model_validate(fields)
    except ValidationError as error:
        raise row.wrong(*_fault(error)) from None
    return sources.with_hash(task)


def _source(row: Row) -> Source | None:
    if row.get("source") is None:
        return None
    try:
        source = Source.model_validate(row.values["source"])
    except ValidationError as error:
        key, problem = _fault(error)
        raise row.wrong(f"source.{key}", problem) from None
    return source.model_copy(update={"path": str((row.folder / Path(source.path).expanduser()).resolve())})


def _fault(error: ValidationError) -> tuple[str, str]:
    fault: Any = error.errors(include_url=False)[0]
    return ".".join(map(str, fault["loc"])), fault["msg"]


__all__: Sequence[str] = ("FORMATS", "load", "read", "recognise")
