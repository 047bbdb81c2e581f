"""Contents that come again and again are kept once, under the hash of their bytes.

Siblings of a group begin with the same prompt, and files of artifacts often repeat. A column that shares has a second
one, `…_hash`: where that is set, the column itself is empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, select

from agentrl.store.direct import execute, find, insertion_unless_there
from agentrl.store.tables import Blobs

Record = dict[str, Any]
SHARED_BYTES = 100
"""What is shorter stays where it is: a reference and the index over it take that much."""
AT_ONCE = 500
"""Hashes per query: databases bound the number of parameters."""


def content_hash(content: bytes) -> bytes:
    """16 bytes of SHA-256."""
    return hashlib.sha256(content).digest()[:16]


def share(record: Record, column: str) -> Record | None:
    """Take what is long out of a sealed record's column; the record of `blobs` that gets it, None where it stays.

    What sealing changed stays: its original is in `raw` anyway.
    """
    value = record[column]
    content = value.encode() if isinstance(value, str) else value
    if len(content) < SHARED_BYTES or record["raw"] is not None:
        return None
    record[column] = "[]" if isinstance(value, str) else b""
    record[column + "_hash"] = content_hash(content)
    return {"hash": record[column + "_hash"], "content": content}


def insert_blobs(connection: Connection, blobs: Iterable[Record]) -> None:
    """Insert those that aren't there."""
    for blob in blobs:
        if find(connection, _FIND, {"hash": blob["hash"]}) is None:
            execute(connection, insertion_unless_there(Blobs, connection.dialect.name), blob)


_FIND = (
    select(Blobs.hash)
    .where(Blobs.hash == bindparam("hash"))
    .with_for_update(read=True, key_share=True)  # nobody may delete it before it is referred to
)


def contents(connection: Connection, hashes: Iterable[bytes | None]) -> dict[bytes, bytes]:
    """The contents by their hashes; None among the hashes is passed over."""
    wanted = sorted({hash for hash in hashes if hash is not None})
    found: dict[bytes, bytes] = {}
    for start in range(0, len(wanted), AT_ONCE):
        query = select(Blobs.hash, Blobs.content).where(Blobs.hash.in_(wanted[start : start + AT_ONCE]))
        found |= {hash: content for hash, content in connection.execute(query)}
    return found


def restored(record: Mapping[Any, Any], column: str, blobs: Mapping[bytes, bytes]) -> Any:
    """The value of a column that shares. Raises ValueError where the blob is gone."""
    hash = record[column + "_hash"]
    if hash is None:
        return record[column]
    if hash not in blobs:
        raise ValueError(f"its {column} is in blob {hash.hex()}, which is gone")
    return blobs[hash] if isinstance(record[column], bytes) else json.loads(blobs[hash])
