"""Any value survives the database: one mechanism for text, JSON and numbers that SQL can't hold.

Databases refuse or change some values: NUL and lone surrogates in text (also inside JSON, keys included), NaN
and infinity. `seal` puts a clean copy into each column, so that people and SQL can read it, and keeps the
originals of the columns it had to change in the record's `raw` column: a JSON object {column: original} in
UTF-8 with surrogates passed through. `raw` is NULL where nothing was changed, which is nearly always.
`unseal` gives the originals back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

import orjson

REPLACEMENT = "\ufffd"
"""Stands in clean text for a character that the database can't hold; numbers become NULL."""


class Encoded(str):
    """Text that is JSON already, so that checking a value and writing it encode it once."""

    __slots__ = ()


def seal(values: dict[str, Any]) -> dict[str, Any]:
    """The record to write: clean values (lists and dicts as `Encoded`), and `raw`.

    Raises TypeError for a list or dict that isn't JSON; an Enum or a UUID in one is written as its value or text.
    """
    clean = values.copy()
    originals: dict[str, Any] = {}
    for name, value in values.items():
        if type(value) in _ALWAYS_CLEAN:
            continue
        clean[name], is_same = _clean(value)
        if not is_same:
            originals[name] = value
    text = to_json(originals) if originals else None
    clean["raw"] = None if text is None else text.encode("utf-8", "surrogatepass")
    return clean


def to_json(value: Any) -> str:
    """JSON that people can read: the database's serializer."""
    return value if isinstance(value, Encoded) else _READABLE.encode(value)


def unseal(record: Mapping[Any, Any]) -> dict[str, Any]:
    """The values that were sealed into `record`; the record must have its `raw` column."""
    values = dict(record)
    raw = values.pop("raw")
    if raw is not None:
        values.update(json.loads(raw.decode("utf-8", "surrogatepass")))
    return values


_ALWAYS_CLEAN = frozenset({int, bool, bytes, NoneType})
_UNCLEAN = re.compile("[\x00\ud800-\udfff]")
"""NUL and lone surrogates; bytes that aren't UTF-8 come as such surrogates (surrogateescape)."""
_READABLE = json.JSONEncoder(ensure_ascii=False)
_STRICT = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_JSON_TYPES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def _clean(value: Any) -> tuple[Any, bool]:
    """What the database can hold of `value`, and whether that is all of it."""
    if isinstance(value, str):
        is_clean = _is_clean_text(value)
        return (value if is_clean else clean_text(value)), is_clean
    if isinstance(value, float):
        if not math.isfinite(value):
            return None, False
        # SQLite keeps whole numbers as integers, which have no -0.0.
        return value, value != 0 or math.copysign(1.0, value) > 0
    if isinstance(value, (list, dict)):
        text = _clean_encoding(value)
        return Encoded(to_json(_clean_json(value)) if text is None else text), text is not None
    return value, True


def _is_clean_text(text: str) -> bool:
    return "\x00" not in text if text.isascii() else _UNCLEAN.search(text) is None


def clean_text(text: str) -> str:
    """`text` as the database holds it."""
    return _UNCLEAN.sub(REPLACEMENT, text)


def _clean_encoding(value: Any) -> str | None:
    """`value` as JSON if a database can hold it. A literal backslash-u0000 in text is a false alarm: one copy more."""
    try:
        text = _encoded(value)
        text.encode("utf-8")
    except ValueError:  # NaN or infinity; UnicodeEncodeError: a lone surrogate
        return None
    return None if "\\u0000" in text else text


def _encoded(value: Any) -> str:
    """Strict JSON: orjson's, five times as fast, unless it refuses or may have written null for NaN or infinity."""
    try:
        text = orjson.dumps(value, option=_JSON_TYPES).decode()
    except TypeError:  # a lone surrogate, a large integer, a key that is no text; what isn't JSON is refused again
        return _STRICT.encode(value)
    return _STRICT.encode(value) if "null" in text else text


def _clean_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_clean_json(key): _clean_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean_json(item) for item in value]
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
