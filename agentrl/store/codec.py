"""Token arrays as bytes, without a header.

Ids are variable-length numbers (LEB128): seven bits a byte, the lowest first; the high bit says that more follow. An
id below 128 takes one byte, below 16,384 two, below 2,097,152 three. Frequent ids are small, so that is less than two
bytes on average. Logprobs are little-endian float32. Engines compute them in float32, so that is exact (NaN and
infinities included); a value that is no float32 is rounded to the nearest one.

By hand: an array has as many ids as its blob has bytes below 128, and as many logprobs as a quarter of its length.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_WIDTH = 4
_LARGEST = 2**31 - 1


def encode_ids(ids: Sequence[int]) -> bytes:
    """Ids of 0 to 2**31 - 1. Raises ValueError for one that is outside of it, TypeError for what is no integer."""
    if ids and not 0 <= min(ids) <= max(ids) <= _LARGEST:
        raise ValueError(f"ids are {min(ids)} to {max(ids)}, not within 0 to {_LARGEST}")
    blob = bytearray()
    for id in ids:
        while id > 0x7F:
            blob.append(id & 0x7F | 0x80)
            id >>= 7
        blob.append(id)
    return bytes(blob)


def decode_ids(blob: bytes) -> list[int]:
    """The inverse of `encode_ids`. Raises ValueError for bytes that it doesn't make."""
    ids = []
    id = shift = 0
    for byte in blob:
        if byte > 0x7F:
            id |= (byte & 0x7F) << shift
            shift += 7
        else:
            ids.append(id | byte << shift)
            id = shift = 0
    if shift or (ids and max(ids) > _LARGEST):
        raise ValueError(f"{len(blob)} bytes are no ids: the last is cut, or one is too large")
    return ids


def encode_logprobs(logprobs: Sequence[float]) -> bytes:
    """Logprobs as little-endian float32. Raises OverflowError where a finite one is too large for it."""
    return struct.pack(f"<{len(logprobs)}f", *logprobs)


def decode_logprobs(blob: bytes) -> list[float]:
    """The inverse of `encode_logprobs`, for float32 values."""
    return list(struct.unpack(f"<{len(blob) // _WIDTH}f", blob))
