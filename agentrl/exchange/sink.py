"""Where examples go, one after another."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

Json = dict[str, Any]
_SURROGATE = re.compile("[\ud800-\udfff]")


class Sink(Protocol):
    """A file that is being written."""

    num_cleaned: int
    """Examples with text that is no Unicode: lone surrogates became U+FFFD, which is what tokenizers make of them."""

    def write(self, example: Json) -> None:
        """Append one."""


@contextmanager
def synced(path: Path) -> Iterator[IO[bytes]]:
    """A new file that is on the disk when the block ends."""
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def cleaned(value: Any) -> Any:
    """A JSON value with U+FFFD for lone surrogates."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value
