"""A config that an earlier agentrl stored still means what it meant, so that its runs can be resumed and replayed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.config import RunConfig
from agentrl.config_servers import EngineConfig
from agentrl.store import Store

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


OTHER_KEYS: dict[str, dict[str, Any]] = {
    "train.learning_rat=0.5: Extra inputs are not permitted": {"train": {"learning_rat": 0.5}},
    "train.optimizer='lion': Input should be 'adamw' or 'muon'": {"train": {"optimizer": "lion"}},
    "env.operands=3: Extra inputs are not permitted": {"env": {"name": "calculator", "operands": 3}},
}


@pytest.mark.parametrize("says", OTHER_KEYS)
def test_a_config_of_another_version_is_named_on_resume(
    says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = str(tmp_path / "agentrl.db")
    config = {"env": {"name": "calculator"}, "command": "train", "model_folder": "/m"} | OTHER_KEYS[says]

    async def write() -> str:
        with Store.open(database) as store:
            return await store.create_run("old", config, packages={"agentrl": "0.9.0", "torch": "2.1"})

    run = asyncio.run(write())
    assert main(["train", "--resume", run, "--db", database]) == 2
    said = capsys.readouterr().err
    assert f"--resume {run}: its config doesn't fit what is installed now: {says}." in said
    assert "made with agentrl 0.9.0, torch 2.1; install those versions" in said and len(said.splitlines()) == 1
