"""Arguments that a form carries as text, as the tool's JSON schema says. The one coercion there is.

| the schema allows | text | value |
|---|---|---|
| a string, or says nothing | `007`, `2024-05-01`, `None`, `5` | the text, untouched |
| integer | `5`, `7.0` | 5, 7 |
| integer | `seven`, `7.5`, `05`, `1_000` | refused |
| number | `5`, `1e5` | 5, 100000.0 |
| boolean | `true`, `True` | True (templates write both) |
| null | `null`, `None` | None (templates write both) |
| array, object | JSON | the list or dict; Python literals are refused |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.rollout.parsers.strict_json import read_value

Schema = Mapping[str, Any]
_PYTHON = {"True": True, "False": False, "None": None}
_MAX_DEPTH = 8
"""Of references and unions that are followed."""


def typed(texts: Mapping[str, str], schema: Schema) -> tuple[dict[str, Any], str]:
    """The arguments as values, and what is wrong with them; what doesn't fit stays text."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, text in texts.items():
        types = set(_types(_parameter(schema, name), schema))
        try:
            values[name] = _value(text, types)
        except ValueError as error:
            values[name] = text
            problems.append(f"{name}: {error}")
    return values, "; ".join(problems)


def _value(text: str, types: set[str]) -> Any:
    if not types or "string" in types:
        return text
    literal = text.strip(" \t\n\r")
    try:
        value = _PYTHON[literal] if literal in _PYTHON else read_value(literal)
    except ValueError as error:
        raise ValueError(f"should be {_listed(types)} ({error})") from None
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)
    if not types & _types_of(value):
        raise ValueError(f"should be {_listed(types)}")
    return value


def _listed(types: set[str]) -> str:
    return " or ".join(sorted(types))


def _types_of(value: Any) -> set[str]:
    """The names in JSON schema of what a value is."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    names = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def _parameter(schema: Schema, name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties")


def _types(schema: Any, root: Schema, depth: int = 0) -> Iterator[str]:
    """All types that a schema allows; none where it doesn't say."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    types = schema.get("type", [])
    yield from [types] if isinstance(types, str) else types
    for value in [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]:
        yield from _types_of(value) if "type" not in schema else ()
    for inner in [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]:
        yield from _types(inner, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        yield from _types(root.get("$defs", {}).get(reference.removeprefix("#/$defs/")), root, depth + 1)
