"""Parquet files and `datasets` folders. Only pyarrow is needed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, ExchangeError
from agentrl.exchange.examples import Form
from agentrl.exchange.sink import Json, Sink, cleaned, synced

BATCH = 64
"""Examples that are in memory at once."""
DATA = "data-00000-of-00001.arrow"
STATE, INFO = "state.json", "dataset_info.json"


class _Batches:
    """Gathers examples to batches."""

    def __init__(self, file: Any, schema: Any) -> None:
        """`file`: pyarrow's writer of Parquet or of a stream."""
        self.file = file
        self.schema = schema
        self.num_cleaned = 0
        self._waiting: list[Json] = []

    def write(self, example: Json) -> None:
        """See Sink."""
        self._waiting.append(example)
        if len(self._waiting) == BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        from agentrl.exchange.schemas import to_batch

        if not self._waiting:
            return
        try:
            batch = to_batch(self._waiting, self.schema)
        except UnicodeEncodeError:
            clean = [cleaned(example) for example in self._waiting]
            self.num_cleaned += sum(now != was for now, was in zip(clean, self._waiting, strict=True))
            batch = to_batch(clean, self.schema)
        self.file.write_batch(batch)
        self._waiting = []


@contextmanager
def parquet_writer(part: Path, form: Form, columns: Sequence[str]) -> Iterator[Sink]:
    """See `files.writing`."""
    _need_arrow()
    from pyarrow.parquet import ParquetWriter

    from agentrl.exchange.schemas import schema_of

    schema = schema_of(form, columns)
    with synced(part) as file, ParquetWriter(file, schema, compression="zstd") as writer:
        sink = _Batches(writer, schema)
        yield sink
        sink.flush()


@contextmanager
def folder_writer(part: Path, form: Form, columns: Sequence[str]) -> Iterator[Sink]:
    """See `files.writing`. As `Dataset.save_to_disk` has it: a stream of Arrow and two small files."""
    arrow = _need_arrow()
    from agentrl.exchange.schemas import schema_of

    schema = schema_of(form, columns)
    part.mkdir()
    with synced(part / DATA) as file, arrow.ipc.new_stream(file, schema) as writer:
        sink = _Batches(writer, schema)
        yield sink
        sink.flush()
    state: Json = {"_data_files": [{"filename": DATA}], "_fingerprint": secrets.token_hex(8), "_format_kwargs": {}}
    state |= {"_format_columns": None, "_format_type": None, "_output_all_columns": False, "_split": None}
    for name, value in {INFO: {}, STATE: state}.items():
        with synced(part / name) as file:
            file.write(json.dumps(value, indent=2).encode())


def read_parquet(source: Path) -> Iterator[tuple[int, Json]]:
    """See `files.reading`."""
    _need_arrow()
    from pyarrow.parquet import ParquetFile

    yield from _read(source, lambda: ParquetFile(source).iter_batches(batch_size=BATCH))


def read_folder(source: Path) -> Iterator[tuple[int, Json]]:
    """See `files.reading`."""
    arrow = _need_arrow()
    if not (source / STATE).is_file():
        raise ConfigError(f"{source}: no folder that datasets.load_from_disk reads: {STATE} is missing")

    def batches() -> Iterator[Any]:
        for one in json.loads((source / STATE).read_bytes())["_data_files"]:
            with arrow.memory_map(str(source / Path(one["filename"]).name)) as file:
                yield from arrow.ipc.open_stream(file)

    yield from _read(source, batches)


def _read(source: Path, open_batches: Any) -> Iterator[tuple[int, Json]]:
    """The examples of all batches. What can't be read leaves as an ExchangeError; errors of who takes them pass."""
    number, examples = 0, _examples(open_batches)
    while True:
        try:
            example = next(examples, None)
        except (_need_arrow().ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            why = " ".join(str(error).split())
            raise ExchangeError(f"{source}: it can't be read behind example {number}: {why}") from error
        if example is None:
            return
        number += 1
        yield number, example


def _examples(open_batches: Any) -> Iterator[Json]:
    from agentrl.exchange.schemas import from_batch

    batches: Iterable[Any] = open_batches()
    for batch in batches:
        yield from from_batch(batch)


def _need_arrow() -> Any:
    """pyarrow. Raises ConfigError where it is missing."""
    try:
        import pyarrow
    except ImportError:
        raise ConfigError("pyarrow is missing: pip install 'agentrl[data]', or name a .jsonl file") from None
    return pyarrow
