"""Replicas of a run's own: one that dies is done without, then started anew; without any the run ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl import plugins
from agentrl.config_servers import EngineConfig
from agentrl.errors import EngineError
from agentrl.progress import Silent
from agentrl.run import train
from agentrl.store import Store
from agentrl.store.records import RunStatus
from tests.small import EvenIds, small_config


def kill_server(name: str) -> None:
    """SIGKILL to the server of this process that serves the model under a name, as if out of memory."""
    for child in psutil.Process().children(recursive=True):
        words = child.cmdline()
        if "agentrl.engine.vllm.main" in words and name in words and os.getpgid(child.pid) == child.pid:
            os.kill(child.pid, signal.SIGKILL)
            return
    raise AssertionError(f"no server of {name} runs")


class Killing(Silent):
    """Kills a replica after the first step, and all after the second."""

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            for name in ["vllm-0"] if values["ordinal"] == 0 else ["vllm-0", "vllm-1"]:
                kill_server(name)


async def test_a_replica_that_dies_is_done_without_and_comes_back_with_the_next_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    config = small_config(
        tmp_path, tmp_path / "cache", "engine=vllm", "engine.replicas=2", "train.steps=4", "eval.tasks=2",
        "eval.every=1", "eval.sampled=false", "train.learning_rate=1e-3", "engine.retry_wait_s=0.05", "name=two",
    )  # fmt: skip
    with pytest.raises(EngineError, match=r"the vLLM server of (?s:.*)exit code -9(?s:.*)engine-0\.log"):
        await train(config, Killing())
    events = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events if event["kind"].startswith(("engine", "step", "gate"))]
    assert kinds[:6] == ["gate", "gate", "step", "engine_lost", "engine_restarted", "step"]
    assert kinds[6:] == ["engine_lost", "engine_lost"]
    with Store.open(tmp_path / "agentrl.db") as store:
        run = store.runs()[0]
        calls = [
            call
            for found in store.find_trajectories(run=run.id)
            for turn in store.load_trajectory(found.id).turns
            for call in turn.calls
        ]
    assert run.status is RunStatus.FAILED
    asked = {version: {call.engine for call in calls if call.version == version} for version in range(2)}
    assert asked == {0: {"vllm-0", "vllm-1"}, 1: {"vllm-1"}}
    publish = [event for event in events if event["kind"] == "step"][1]
    assert publish["publish_seconds"] > 0 and publish["canary_delta"] < 1e-3


def test_devices_are_shared_out_evenly() -> None:
    with pytest.raises(ValueError, match=r"devices=\[0, 1, 2\]: name as many for each of replicas=2"):
        EngineConfig(name="vllm", replicas=2, devices=[0, 1, 2])
