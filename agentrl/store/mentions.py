"""Is a text mentioned in a column? In upper or lower case; of a list of messages, in what they say."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from sqlalchemy import JSON, Boolean, LargeBinary, SQLColumnExpression, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement, literal


class mentions(FunctionElement[bool]):
    """`mentions(column, text)`: a column of text, of messages as JSON, or of such JSON as bytes."""

    inherit_cache = True
    type = Boolean()

    def __init__(self, column: SQLColumnExpression[Any], text: str) -> None:
        super().__init__(column, literal(text))


@compiles(mentions, "sqlite")
def _sqlite(element: mentions, compiler: Any, **options: Any) -> str:
    column, text = element.clauses
    name = "messages_mention" if _holds_messages(column) else "text_mentions"
    value = f"CAST({compiler.process(column, **options)} AS BLOB)"  # the driver refuses text that is no UTF-8
    return f"{name}({value}, {compiler.process(text, **options)})"


@compiles(mentions)
def _postgresql(element: mentions, compiler: Any, **options: Any) -> str:
    column, text = element.clauses
    value, sought = compiler.process(column, **options), f"lower({compiler.process(text, **options)})"
    if not _holds_messages(column):
        return f"position({sought} in lower({value})) > 0"
    messages = f"convert_from({value}, 'UTF8')::json" if isinstance(column.type, LargeBinary) else value
    found = f"position({sought} in lower(one.message ->> 'content')) > 0"
    return f"EXISTS (SELECT 1 FROM json_array_elements({messages}) AS one(message) WHERE {found})"


class reasoning_of(FunctionElement[str]):
    """`reasoning_of(column)`: of a column with a message as JSON; NULL where it has none, or is damaged."""

    inherit_cache = True
    type = Text()


@compiles(reasoning_of, "sqlite")
def _sqlite_reasoning(element: reasoning_of, compiler: Any, **options: Any) -> str:
    value = compiler.process(element.clauses, **options)
    return f"CASE WHEN json_valid({value}) THEN json_extract({value}, '$.reasoning') END"


@compiles(reasoning_of)
def _postgresql_reasoning(element: reasoning_of, compiler: Any, **options: Any) -> str:
    return f"({compiler.process(element.clauses, **options)} ->> 'reasoning')"


def _holds_messages(column: Any) -> bool:
    return isinstance(column.type, JSON | LargeBinary)


def add_functions(connection: sqlite3.Connection) -> None:
    """What SQLite lacks: it knows no upper and lower case but that of ASCII, and is slower at it."""
    connection.create_function("text_mentions", 2, _text_mentions, deterministic=True)
    connection.create_function("messages_mention", 2, _messages_mention, deterministic=True)


def _text_mentions(text: bytes | None, sought: str) -> bool:
    return text is not None and _says(_decoded(text), sought)


def _says(text: str, sought: str) -> bool:
    return sought.casefold() in text.casefold()


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


def _messages_mention(messages: bytes, sought: str) -> bool:
    """Most don't, and that is seen without reading the JSON. Where that is damaged, its raw text counts: others are
    found all the same, and whoever reads it is told.
    """
    text = _decoded(messages)
    if not _says(text, json.dumps(sought, ensure_ascii=False)[1:-1]):
        return False
    try:
        contents = [message.get("content", "") for message in json.loads(text)]
    except (ValueError, TypeError, AttributeError):
        return True
    texts = [part["text"] for content in contents if isinstance(content, list) for part in content]
    return any(_says(said, sought) for said in [*texts, *contents] if isinstance(said, str))
