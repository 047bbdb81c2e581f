"""One JSON object a line, in UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agentrl.errors import ExchangeError
from agentrl.exchange.examples import Form
from agentrl.exchange.sink import Json, Sink, cleaned, synced


class _Lines:
    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.num_cleaned = 0

    def write(self, example: Json) -> None:
        """See Sink."""
        try:
            line = _line(example)
        except UnicodeEncodeError:
            self.num_cleaned += 1
            line = _line(cleaned(example))
        self.file.write(line)


def _line(example: Json) -> bytes:
    return json.dumps(example, ensure_ascii=False, allow_nan=False).encode() + b"\n"


@contextmanager
def writer(part: Path, form: Form, columns: Sequence[str]) -> Iterator[Sink]:
    """See `files.writing`."""
    with synced(part) as file:
        yield _Lines(file)


def read(source: Path) -> Iterator[tuple[int, Json]]:
    """See `files.reading`. Empty lines are skipped."""
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _object(f"{source}, line {number}", line)


def _object(where: str, line: bytes) -> Json:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ExchangeError(f"{where}: {error.reason} at byte {error.start}; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ExchangeError(f"{where}: no JSON ({error}); each line must be one whole JSON object") from None
    if not isinstance(value, dict):
        raise ExchangeError(f"{where}: a {type(value).__name__} where an object was due; write one example a line")
    return value
