"""An engine per tying, each with the model that it was loaded from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import Qwen2ForCausalLM

from agentrl.engine.embedded import EmbeddedEngine
from agentrl.rollout.http_client import HttpClient
from agentrl.sync.base import Canary
from agentrl.sync.memory import MemorySync
from tests.engine.models import forward_logits, make_model, picked

PROMPT, FORCED = [5, 6, 7, 8], [9, 10, 11, 12, 13, 14]
NOISE = 1e-5


@dataclass
class Pair:
    """A trainer's model, the engine that serves a copy of it, and a client of that engine."""

    trainer: Qwen2ForCausalLM
    engine: EmbeddedEngine
    client: HttpClient
    sync: MemorySync

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.trainer.state_dict())

    def logprobs(self) -> list[float]:
        logits = forward_logits(self.trainer, PROMPT, FORCED)
        return picked(torch.log_softmax(logits, -1), FORCED).tolist()

    @torch.no_grad()
    def update(self, scale: float) -> Canary:
        """A training step: every tensor moves; the canary of old and new weights."""
        previous = self.logprobs()
        generator = torch.Generator().manual_seed(1)
        for parameter in self.trainer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)
        return Canary(prompt_ids=PROMPT, forced_ids=FORCED, expected=self.logprobs(), previous=previous, noise=NOISE)


@pytest.fixture(scope="package", params=[True, False], ids=["tied", "untied"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EmbeddedEngine, bool]]:
    folder: Path = tmp_path_factory.mktemp("model")
    make_model(folder, tied=request.param)
    engine = EmbeddedEngine(folder, threads=1, max_batch_tokens=128, cache_tokens=4096)
    engine.start()
    yield engine, request.param
    engine.stop()


@pytest_asyncio.fixture
async def pair(served: tuple[EmbeddedEngine, bool], tmp_path: Path) -> AsyncIterator[Pair]:
    """Engine at version 0 with the trainer's weights, proved."""
    engine, tied = served
    trainer = make_model(tmp_path, tied=tied)
    client = HttpClient(engine.url, key=engine.key)
    await client.open()
    sync = MemorySync()
    sync.connect(trainer, [engine])
    pair = Pair(trainer=trainer, engine=engine, client=client, sync=sync)
    await sync.publish(0, iter(pair.tensors().items()), pair.update(0.0), client)
    yield pair
    await client.close()
