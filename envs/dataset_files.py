"""Files of prompts and answers: JSONL and Parquet → examples. Each mistake names the file and the line."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import JsonValue, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from agentrl.environment import EnvironmentConfig, needs_files
from agentrl.errors import ConfigError
from agentrl.types import Message

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "messages")
ANSWER_COLUMNS = ("answer", "solution", "target", "label")
MAX_SHOWN_COLUMNS = 20
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
Record = dict[str, Any]


class FilesConfig(EnvironmentConfig):
    """Base of the options of environments whose tasks are in files."""

    takes_folders: ClassVar[bool] = False
    path: str | None = None
    sha256: str | None = None
    """Of the files. Filled in at start and stored with the run, so that a changed file is noticed on resume."""

    @property
    def paths(self) -> list[Path]:
        """The files, or folders of files."""
        named = (self.path, getattr(self, "held_out_path", None))
        return [Path(path).expanduser() for path in named if path]

    @field_validator("path", "held_out_path", check_fields=False)
    @classmethod
    def _is_there(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None or not needs_files(info):
            return path
        where = Path(path).expanduser()
        if where.is_file() or (cls.takes_folders and where.is_dir()):
            return path
        kind = "file or folder" if cls.takes_folders else "file"
        raise ValueError(f"no {kind} there (looked from {Path.cwd()}); data are never downloaded, so get them first")

    @model_validator(mode="after")
    def _fingerprint(self, info: ValidationInfo) -> Self:
        if not needs_files(info):
            return self
        try:
            found = digest(self.paths) if self.paths else None
        except OSError as error:
            raise ValueError(f"can't read {error.filename}: {error.strerror}") from None
        if self.sha256 is not None and self.sha256 != found:
            names = " and ".join(map(str, self.paths)) or "what comes along"
            raise ValueError(f"{names}: other data than env.sha256 says; leave that out to take them as they are")
        self.sha256 = found
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which column holds what."""

    prompt: str
    answer: str | None
    others: tuple[str, ...] = ()
    """Kept for the reward function."""

    @classmethod
    def choose(cls, where: str, names: Sequence[str], *, prompt: str | None, answer: str | None,
               others: Sequence[str]) -> Columns:  # fmt: skip
        """From the options, else by the usual names. Raises ConfigError with the columns that there are."""
        found = _choose(where, names, "prompt", prompt, PROMPT_COLUMNS)
        if found is None:
            raise ConfigError(
                f"{where}: no column named {' or '.join(PROMPT_COLUMNS)}; say which with env.prompt. {_listed(names)}"
            )
        for other in others:
            if other not in names:
                raise ConfigError(f"{where}: env.columns names {other!r}. {_listed(names)}")
        return cls(prompt=found, answer=_choose(where, names, "answer", answer, ANSWER_COLUMNS), others=tuple(others))


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One line of a file."""

    line: int
    """From 1; in a Parquet file the row."""
    messages: list[Message]
    data: dict[str, JsonValue]
    """The answer, and the further columns."""


def read(path: Path, *, prompt: str | None, answer: str | None, others: Sequence[str]) -> list[Example]:
    """All examples of a file. Raises ConfigError."""
    records = _parquet(path, prompt, answer, others) if path.suffix == ".parquet" else jsonl(path)
    first = next(records, None)
    if first is None:
        raise ConfigError(f"{path}: the file holds no examples")
    columns = Columns.choose(f"{path}:{first[0]}", list(first[1]), prompt=prompt, answer=answer, others=others)
    return [_example(path, columns, first), *(_example(path, columns, numbered) for numbered in records)]


def digest(paths: Sequence[Path]) -> str:
    """Hash of the files' bytes, of folders also their names; what begins with a dot is no data. Raises OSError."""
    total = hashlib.sha256()
    for path in paths:
        for file in _files_below(path) if path.is_dir() else [path]:
            if file != path:
                total.update(f"{file.relative_to(path)}\0".encode("utf-8", "surrogateescape"))
            with file.open("rb") as content:
                total.update(hashlib.file_digest(content, "sha256").digest())
    return total.hexdigest()


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (Path(place, name) for name in sorted(names) if not name.startswith("."))
        yield from (file for file in files if file.is_file())


def jsonl(path: Path, faults: list[ConfigError] | None = None) -> Iterator[tuple[int, Record]]:
    """(line from 1, object) of each line.

    Raises ConfigError for the first line that is no object; where there is a list for faults, it goes there instead
    and the others follow.
    """
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                text = _text(path, line, raw)
                record = _record(path, line, text) if text else None
            except ConfigError as fault:
                if faults is None:
                    raise
                faults.append(fault)
            else:
                if record is not None:
                    yield line, record


def _text(path: Path, line: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}:{line}: not UTF-8 (byte {error.start + 1} of the line); convert it") from None


def _record(path: Path, line: int, text: str) -> Record:
    try:
        record = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{line}: no JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{line}: no JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{path}:{line}: a {type(record).__name__}, not an object; write one JSON object per line")
    return record


def _parquet(path: Path, prompt: str | None, answer: str | None, others: Sequence[str]) -> Iterator[tuple[int, Record]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(f"{path}: reading Parquet needs pyarrow: pip install 'agentrl[data]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = Columns.choose(str(path), names, prompt=prompt, answer=answer, others=others)
            wanted = [columns.prompt, *([columns.answer] if columns.answer else []), *columns.others]
            row = 0
            for batch in file.iter_batches(columns=wanted):
                for record in batch.to_pylist():
                    row += 1
                    yield row, record
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{path}: no Parquet file: {' '.join(str(error).split())}") from None


def _example(path: Path, columns: Columns, numbered: tuple[int, Record]) -> Example:
    line, record = numbered
    where = f"{path}:{line}"
    for name in (columns.prompt, *([columns.answer] if columns.answer else []), *columns.others):
        if name not in record:
            raise ConfigError(f"{where}: no column {name!r}. {_listed(list(record))}")
    data: dict[str, JsonValue] = {}
    if columns.answer:
        data["answer"] = _plain(where, columns.answer, record)
    if columns.others:
        data["columns"] = {name: _plain(where, name, record) for name in columns.others}
    return Example(line=line, messages=_messages(where, columns.prompt, record[columns.prompt]), data=data)


def _messages(where: str, column: str, value: Any) -> list[Message]:
    """A text is what the user says; a list is a conversation that the model goes on with."""
    if isinstance(value, str):
        if not value.strip():
            raise ConfigError(f"{where}: {column} is empty")
        return [Message(role="user", content=value)]
    try:
        messages = TypeAdapter(list[Message]).validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, (column, *fault["loc"])))
        raise ConfigError(
            f"{where}: {place}: {fault['msg']}; write a text, or messages with role and content"
        ) from None
    if not messages or messages[-1].role in ("assistant", "system"):
        last = messages[-1].role if messages else "none"
        raise ConfigError(f"{where}: the last of {column} is {last}; the model replies to a user's or a tool's message")
    return messages


def _plain(where: str, column: str, record: Record) -> JsonValue:
    try:
        return _JSON.validate_python(record[column])
    except ValidationError:
        kind = type(record[column]).__name__
        raise ConfigError(f"{where}: {column} holds a {kind}; write texts, numbers, lists or objects") from None


def _choose(where: str, names: Sequence[str], what: str, named: str | None, usual: Sequence[str]) -> str | None:
    if named is not None:
        if named not in names:
            raise ConfigError(f"{where}: env.{what}={named} is no column. {_listed(names)}")
        return named
    found = [name for name in usual if name in names]
    if len(found) > 1:
        raise ConfigError(
            f"{where}: {' and '.join(found)} may be the {what}; say which with env.{what}. {_listed(names)}"
        )
    return found[0] if found else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_SHOWN_COLUMNS]) or "none"
    return f"Columns: {shown}{', …' if len(names) > MAX_SHOWN_COLUMNS else ''}"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
