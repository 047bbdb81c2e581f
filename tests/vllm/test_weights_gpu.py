"""Weights by vLLM's own ways, which need CUDA devices. Run with `pytest -m gpu` where there are some."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.rollout.http_client import HttpClient
from agentrl.run import sent_tensors
from agentrl.sync.choose import TransportName, make_transport
from agentrl.sync.remote import RemoteSync
from agentrl.train.policy import Policy
from tests.vllm.conftest import Pair

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("name", "device"), [("ipc", 0), ("nccl", 1), ("gloo", 0), ("file", 0)])
async def test_a_gpu_takes_weights(name: TransportName, device: int, folder: Path, tmp_path: Path) -> None:
    """The trainer is on GPU 0. Twice by each: the second time trainer and engine have met already."""
    if torch.cuda.device_count() <= device:
        pytest.skip(f"needs {device + 1} CUDA devices")
    options = VllmOptions(
        model=folder, name="vllm", log=tmp_path / "log", devices=(device,), gpu_memory_utilization=0.3
    )
    with Policy.load(folder, device="cuda:0") as policy:
        async with VllmEngine(options) as engine, HttpClient(engine.url, key=engine.key) as client:
            pair = Pair(policy, engine, client, RemoteSync(make_transport(name, tmp_path / "weights")))
            pair.sync.connect(policy.model, [engine])
            for version in (1, 2):
                canary = pair.update(0.02, version)
                report = await pair.sync.publish(version, sent_tensors(policy), canary, client)
                assert report.proof == "canary"
