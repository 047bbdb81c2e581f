"""A tool from a typed function: what is recorded of a call is JSON, what the function gets has its types."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from agentrl.tool import ToolContext, tool


class Colour(Enum):
    RED = "red"


class Place(BaseModel):
    city: str
    since: date | None = None


@tool
def book(day: date, place: Place, tags: set[str], colour: Colour = Colour.RED, price: Decimal = Decimal("1.5")) -> str:
    """Book."""
    return f"{day.year} {place.city} {place.since} {sorted(tags)} {colour.name} {price + 1}"


@tool
def say(text: Any) -> str:
    """Say."""
    return repr(text)


CTX = ToolContext(sandbox=None, seed=0, deadline=0.0)


async def test_dates_models_and_sets_are_recorded_as_json_and_given_as_what_they_are() -> None:
    given = {"day": "2026-11-29", "place": {"city": "Bonn", "since": "1900-01-02"}, "tags": ["b", "a", "b"]}
    checked = book.validate(given)
    assert json.loads(json.dumps(checked)) == checked
    assert checked["day"] == "2026-11-29" and checked["colour"] == "red" and sorted(checked["tags"]) == ["a", "b"]
    assert (await book.call(checked, CTX)).content == "2026 Bonn 1900-01-02 ['a', 'b'] RED 2.5"


@pytest.mark.parametrize("wrong", [{"day": "soon"}, {"place": "Bonn"}, {"other": 1}])
def test_what_does_not_fit_is_a_value_error(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"day": "2026-11-29", "place": {"city": "Bonn"}, "tags": []}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        book.validate(given | wrong)


@pytest.mark.parametrize("text", ["plain", "\ud800 alone", "nul \0", {"a": ["\udfff", 1e400, 10**30]}])
async def test_any_value_that_json_can_name_gets_through(text: Any) -> None:
    assert (await say.call(say.validate({"text": text}), CTX)).content == repr(text)
