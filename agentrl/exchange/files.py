"""The three kinds of files that examples are in, by the ending of the name.

    NAME.jsonl     one JSON object a line
    NAME.parquet   columns
    NAME           a folder for `datasets.load_from_disk`

A file is written under a temporary name beside its target and renamed once it is whole, so that whatever goes wrong
leaves the target as it was. Nothing that is read can run code: JSON, Arrow and Parquet hold values only.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import ConfigError, StoreError
from agentrl.exchange import columns as arrow
from agentrl.exchange import json_lines
from agentrl.exchange.examples import Form
from agentrl.exchange.sink import Sink

Json = dict[str, Any]
T = TypeVar("T")
_WRITERS = {".jsonl": json_lines.writer, ".parquet": arrow.parquet_writer, "": arrow.folder_writer}
_READERS = {".jsonl": json_lines.read, ".parquet": arrow.read_parquet, "": arrow.read_folder}


@contextmanager
def writing(target: Path, form: Form, columns: Sequence[str] = (), *, overwrite: bool = False) -> Iterator[Sink]:
    """Write a file, a whole one or none. `columns`: the optional ones.

    Raises ConfigError where the target is there already or its ending isn't known, StoreError where the disk fails.
    """
    write = _of_kind(target, _WRITERS)
    _check_target(target, overwrite)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with write(part, form, columns) as sink:
            yield sink
        _check_target(target, overwrite)  # another export may have made it meanwhile
        _put_in_place(part, target)
    except OSError as error:
        why = f"{target}: {error.strerror or error}; nothing was written"
        raise StoreError(f"{why}. Free some space, or name another place") from error
    finally:
        _remove(part)


def reading(source: Path) -> Iterator[tuple[int, Json]]:
    """Each example of a file with its number, from 1 (of JSON lines: the line's).

    Raises ConfigError for a file that isn't there or of an unknown kind, ExchangeError that names the line that can't
    be read.
    """
    read = _of_kind(source, _READERS)
    if not source.exists():
        raise ConfigError(f"{source}: there is no such file")
    return read(source)


def _of_kind(path: Path, known: Mapping[str, T]) -> T:
    if path.suffix not in known:
        raise ConfigError(
            f"{path}: {path.suffix} is no kind of file that is known here; name it .jsonl or .parquet, or without an "
            f"ending for a folder that datasets.load_from_disk reads"
        )
    return known[path.suffix]


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: there is no folder {target.parent}; make it first")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ConfigError(f"{target} is there already; add --overwrite to replace it, or choose another name")
    if target.is_dir() and not (target / arrow.STATE).is_file():
        raise ConfigError(f"{target} is a folder that no export made, so it isn't replaced; choose another name")


def _put_in_place(part: Path, target: Path) -> None:
    """Rename. A file takes the place of the old one at once; a folder can't, so the old one steps aside first."""
    if target.is_dir():
        old = part.with_suffix(".old")
        target.rename(old)
        try:
            part.rename(target)
        except BaseException:  # Ctrl-C too
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        part.replace(target)
    _sync(target.parent)


def _remove(part: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    with suppress(OSError):  # mostly it isn't there: it was put in place, or never made
        part.unlink()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
