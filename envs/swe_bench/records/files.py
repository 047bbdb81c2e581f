"""Where records lie: JSON lines, JSON, Parquet, a saved dataset, a folder of splits, a repository of tasks.

Nothing is downloaded: what isn't on this machine is an error that says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentrl.envs.dataset_files import jsonl
from agentrl.envs.swe_bench.records import task_repository
from agentrl.envs.swe_bench.records.row import Row
from agentrl.errors import ConfigError

_SPLIT = re.compile(r"(.+?)(-\d+-of-\d+)?\.(jsonl|parquet)")


def rows(path: Path, faults: list[ConfigError]) -> Iterator[Row]:
    """Each record of a file or a folder, in order; what is wrong with one that can't be read goes into `faults`.

    Raises ConfigError for a file that can't be read at all.
    """
    if path.is_dir():
        yield from _folder(path, faults)
    elif not path.is_file():
        raise ConfigError(
            f"{path}: no file or folder there (looked from {Path.cwd()}). Datasets are never downloaded: get it onto "
            f"this machine as JSON lines, Parquet or a dataset folder, and name that"
        )
    elif path.suffix in _READERS:
        for line, record in _READERS[path.suffix](path, faults):
            yield Row(where=f"{path}:{line}", values=record, folder=path.parent)
    else:
        raise ConfigError(f"{path}: unknown kind of file; the endings are {', '.join(_READERS)}")


def _folder(path: Path, faults: list[ConfigError]) -> Iterator[Row]:
    if (path / task_repository.CONFIG).is_file():
        yield from task_repository.rows(path, faults)
    elif (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits", [])
        yield from _folder(path / _only(path, {name: [path / name] for name in splits})[0].name, faults)
    elif (path / "state.json").is_file():
        yield from _saved(path)
    else:
        for file in _only(path, _splits(path)):
            yield from rows(file, faults)


def _splits(folder: Path) -> dict[str, list[Path]]:
    """By name; a split may be several files."""
    found: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("*.*"), *folder.glob("data/*.*")]):
        if path.is_file() and (match := _SPLIT.fullmatch(path.name)):
            found.setdefault(match[1], []).append(path)
    return found


def _only(folder: Path, splits: dict[str, list[Path]]) -> list[Path]:
    """Two splits are never mixed: one of them may be there to be held out."""
    if not splits:
        raise ConfigError(
            f"{folder}: no dataset there: no .jsonl or .parquet, nothing that datasets saved (state.json), "
            f"no repository of tasks ({task_repository.CONFIG})"
        )
    if len(splits) > 1:
        files = ", ".join(str(path) for paths in splits.values() for path in paths[:1])
        raise ConfigError(f"{folder} has the splits {', '.join(splits)}; name one, by its file or folder: {files}")
    return next(iter(splits.values()))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no JSON: {error}") from None


def _list(path: Path, faults: list[ConfigError]) -> Iterator[tuple[int, dict[str, Any]]]:
    records = _json(path)
    if not isinstance(records, list):
        raise ConfigError(f"{path}: write a list of objects, or JSON lines in a file that ends in .jsonl")
    for place, record in enumerate(records, start=1):
        if isinstance(record, dict):
            yield place, record
        else:
            faults.append(ConfigError(f"{path}:{place}: a {type(record).__name__}, not an object"))


def _parquet(path: Path, faults: list[ConfigError]) -> Iterator[tuple[int, dict[str, Any]]]:
    arrow = _arrow(path)
    try:
        with arrow.parquet.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(batch_size=100))
    except (arrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: no Parquet file: {' '.join(str(error).split())}") from None


def _saved(folder: Path) -> Iterator[Row]:
    """What `save_to_disk` of the library datasets wrote."""
    arrow = _arrow(folder)
    for each in _json(folder / "state.json").get("_data_files", []):
        path = folder / Path(each["filename"]).name
        try:
            with arrow.OSFile(str(path)) as file, arrow.ipc.open_stream(file) as stream:
                for line, record in _numbered(stream):
                    yield Row(where=f"{path}:{line}", values=record, folder=folder)
        except (arrow.ArrowException, OSError) as error:
            raise ConfigError(f"{path}: can't be read: {' '.join(str(error).split())}") from None


def _numbered(batches: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    row = 0
    for batch in batches:
        for record in batch.to_pylist():
            row += 1
            yield row, record


def _arrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{path}: reading it needs pyarrow: pip install 'agentrl[data]'") from None
    return pyarrow


_READERS: dict[str, Callable[[Path, list[ConfigError]], Iterator[tuple[int, dict[str, Any]]]]] = {
    ".jsonl": jsonl,
    ".json": _list,
    ".parquet": _parquet,
}
