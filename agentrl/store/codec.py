"""Token arrays as bytes: little-endian int32 ids and float32 logprobs, four bytes an element, no header.

The length of an array is the length of its blob divided by four. Ids round-trip exactly. Logprobs come from
engines that compute them in float32, so float32 holds them exactly (NaN and infinities included); a value that
is no float32 is rounded to the nearest one.

Read one by hand: ``struct.unpack(f"<{len(blob) // 4}i", blob)`` or ``numpy.frombuffer(blob, "<i4")``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_WIDTH = 4


def encode_ids(ids: Sequence[int]) -> bytes:
    """Ids as little-endian int32. Raises struct.error where one is no integer or needs more than 32 bits."""
    return struct.pack(f"<{len(ids)}i", *ids)


def decode_ids(blob: bytes) -> list[int]:
    """The inverse of `encode_ids`."""
    return list(struct.unpack(f"<{len(blob) // _WIDTH}i", blob))


def encode_logprobs(logprobs: Sequence[float]) -> bytes:
    """Logprobs as little-endian float32. Raises OverflowError where a finite one is too large for it."""
    return struct.pack(f"<{len(logprobs)}f", *logprobs)


def decode_logprobs(blob: bytes) -> list[float]:
    """The inverse of `encode_logprobs`, for float32 values."""
    return list(struct.unpack(f"<{len(blob) // _WIDTH}f", blob))
