"""A config that an earlier agentrl stored still means what it meant, so that its runs can be resumed and replayed."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.config_servers import EngineConfig

OF_0001: dict[str, Any] = {
    "name": "embedded", "url": None, "api": "tokens", "model": None, "key_env": None, "threads": 1, "cache_gib": 1,
    "cache_tokens": None, "devices": [], "gpu_memory_utilization": 0.9, "start_timeout_s": 240.0,
}  # fmt: skip
"""Of an engine, while schema 0001 was the last. All keys are there, also those that the engine hasn't got."""


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({}, {}),
        ({"name": "vllm", "gpu_memory_utilization": 0.5}, {"name": "vllm", "gpu_memory_utilization": 0.5}),
        (
            {"url": "http://127.0.0.1:1/v1", "api": "chat", "model": "m"},
            {"urls": ["http://127.0.0.1:1/v1"], "api": "chat", "model": "m"},
        ),
    ],
)
def test_the_engine_of_an_earlier_config(then: dict[str, Any], now: dict[str, Any]) -> None:
    stored = RunConfig.model_validate({"env": {"name": "calculator"}}).public()
    del stored["sync"]
    stored |= {"engine": OF_0001 | then, "command": "train", "model_folder": "/m"}
    config = RunConfig.of_stored(stored, "here.db")
    assert config.engine == EngineConfig.model_validate({"threads": 1} | now)
    assert config.store.url == "here.db"
