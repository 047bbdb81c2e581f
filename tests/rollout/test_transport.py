"""What servers say when they refuse, in all the forms that they say it in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.config_servers import EngineConfig
from agentrl.errors import ConfigError
from agentrl.rollout.transport import Response, key_of

OVERFLOWS: list[tuple[int, Any]] = [
    (
        400,
        {"error": {"message": "This model's maximum context length is 4097 tokens", "code": 400}},
    ),
    (400, {"error": {"message": "Please reduce the length.", "code": "context_length_exceeded"}}),
    (400, {"object": "error", "message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}),
    (400, {"error": {"message": "the request exceeds the available context size, try increasing it", "code": 400}}),
    (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
    (400, [{"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]),
    (422, {"error": "inputs and max_model_len don't go together"}),
    (413, {"error": {"message": "Prompt exceeds max length"}}),
]
OTHERS: list[tuple[int, Any]] = [
    (400, {"error": {"message": "messages: at least one is needed", "code": "invalid"}}),
    (429, {"error": {"message": "rate limit for your context length", "code": "context_length_exceeded"}}),
    (500, {"error": {"message": "maximum context length"}}),
    (200, {"error": {"message": "maximum context length"}}),
]


def response(status: int, body: Any) -> Response:
    return Response(status, json.dumps(body).encode(), None)


@pytest.mark.parametrize(("status", "body"), OVERFLOWS)
def test_e02_an_overflow_is_known_by_what_servers_say_of_it(status: int, body: Any) -> None:
    assert response(status, body).is_overflow


@pytest.mark.parametrize(("status", "body"), OTHERS)
def test_e02_another_refusal_is_no_overflow(status: int, body: Any) -> None:
    assert not response(status, body).is_overflow


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no"}}, "no"),
        ({"error": "no"}, "no"),
        ({"message": "no"}, "no"),
        ([{"error": {"message": "no"}}], "no"),
        ({"detail": [{"loc": ["body", "seed"]}]}, '{"detail": [{"loc": ["body", "seed"]}]}'),
        ([], "[]"),
        (3, "3"),
        ("no", "no"),
        ({"error": {"message": "x" * 1000}}, "x" * 300),
    ],
)
def test_the_servers_own_words_are_found_and_bounded(body: Any, message: str) -> None:
    assert response(400, body).message == message


def test_what_is_no_json_is_shown_as_it_is() -> None:
    assert Response(502, b"<html>\xff", None).message == "<html>\ufffd"
    assert Response(400, b"[" * 100_000, None).message == "[" * 300


def test_a_key_is_read_when_it_is_needed_and_its_lack_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush")
    assert key_of(EngineConfig()) is None and key_of(EngineConfig(key_env="MY_KEY")) == "hush"
    monkeypatch.setenv("MY_KEY", "")
    with pytest.raises(ConfigError, match=r"engine\.key_env=MY_KEY"):
        key_of(EngineConfig(key_env="MY_KEY"))
