"""The columns of each form in Arrow: Parquet files and `datasets` folders.

What has another shape in each example (a tool's schema, a call's arguments, a whole trajectory) is Arrow's JSON type:
text in the file, which `datasets` gives back as objects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from agentrl.exchange.examples import Form

_TEXT, _JSON = pa.string(), pa.json_()
_FUNCTION = pa.struct({"name": _TEXT, "arguments": _JSON})
_CALL = pa.struct({"id": _TEXT, "type": _TEXT, "function": _FUNCTION})
_MESSAGE = pa.struct(
    {
        "role": _TEXT,
        "content": _TEXT,
        "reasoning_content": _TEXT,
        "tool_calls": pa.list_(_CALL),
        "tool_call_id": _TEXT,
        "name": _TEXT,
    }
)
_WEIGHTED = pa.struct([*_MESSAGE, pa.field("weight", pa.int8())])
_PROVENANCE = pa.struct(
    {
        **dict.fromkeys(("trajectory", "run", "group", "env", "task", "split"), _TEXT),
        "versions": pa.list_(pa.int32()),
        "reward": pa.float64(),
        **dict.fromkeys(("stop_reason", "template_hash", "vocabulary", "agentrl"), _TEXT),
    }
)
_OF_ROW = pa.struct([*_PROVENANCE, pa.field("end_turn", pa.int32())])
_OF_PAIR = pa.struct({"chosen": _PROVENANCE, "rejected": _PROVENANCE})
_COLUMNS = {
    "logprobs": pa.list_(pa.float32()),
    "versions": pa.list_(pa.int32()),
    "weights": pa.list_(pa.float32()),
}
_FORMS: dict[Form, dict[str, pa.DataType]] = {
    Form.MESSAGES: {"messages": pa.list_(_WEIGHTED), "tools": _JSON, "provenance": _PROVENANCE},
    Form.TOKENS: {
        "input_ids": pa.list_(pa.int32()),
        "assistant_masks": pa.list_(pa.int8()),
        **_COLUMNS,
        "provenance": _OF_ROW,
    },
    Form.PREFERENCES: {
        **dict.fromkeys(("prompt", "chosen", "rejected"), pa.list_(_MESSAGE)),
        "tools": _JSON,
        "provenance": _OF_PAIR,
    },
    Form.TRAJECTORIES: {"trajectory": _JSON, "grades": _JSON, "raw": _TEXT, "provenance": _PROVENANCE},
}


def schema_of(form: Form, columns: Sequence[str] = ()) -> pa.Schema:
    """The columns of a form; of those that are optional, the ones that are named."""
    return pa.schema({name: its for name, its in _FORMS[form].items() if name not in _COLUMNS or name in columns})


def to_batch(examples: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Examples as columns. Raises UnicodeEncodeError for lone surrogates."""
    plain = pa.schema([pa.field(one.name, _plain(one.type)) for one in schema])
    rows = [{one.name: _encoded(example.get(one.name), one.type) for one in schema} for example in examples]
    return pa.RecordBatch.from_pylist(rows, schema=plain).cast(schema)


def from_batch(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The inverse of `to_batch`, also for files of others. Raises ValueError for a JSON column that holds none."""
    return [{one.name: _decoded(row[one.name], one.type) for one in batch.schema} for row in batch.to_pylist()]


def _plain(its: pa.DataType) -> pa.DataType:
    """The type with text for JSON: values of Python become columns of that only."""
    if its == _JSON:
        return _TEXT
    if pa.types.is_struct(its):
        return pa.struct([pa.field(one.name, _plain(one.type)) for one in its])
    return pa.list_(_plain(its.value_type)) if pa.types.is_list(its) else its


def _encoded(value: Any, its: pa.DataType) -> Any:
    if value is None:
        return None
    if its == _JSON:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if pa.types.is_struct(its):
        return {one.name: _encoded(value.get(one.name), one.type) for one in its}
    return [_encoded(item, its.value_type) for item in value] if _is_nested_list(its) else value


def _decoded(value: Any, its: pa.DataType) -> Any:
    if value is None:
        return None
    if its == _JSON:
        return json.loads(value)
    if pa.types.is_struct(its):
        found = {one.name: _decoded(value[one.name], one.type) for one in its}
        return {name: item for name, item in found.items() if item is not None}
    return [_decoded(item, its.value_type) for item in value] if _is_nested_list(its) else value


def _is_nested_list(its: pa.DataType) -> bool:
    """Lists of numbers are left as they are: they are long."""
    return (pa.types.is_list(its) or pa.types.is_large_list(its)) and not pa.types.is_primitive(its.value_type)
