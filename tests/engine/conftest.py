from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import Qwen2ForCausalLM

from agentrl.engine.embedded import EmbeddedEngine
from tests.engine.models import make_model
from tests.engine.wire import Wire


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="session")
def model(model_folder: Path) -> Qwen2ForCausalLM:
    return make_model(model_folder)


@pytest.fixture(scope="session")
def shared_engine(model: Qwen2ForCausalLM, model_folder: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model_folder, threads=1, max_batch_tokens=128, cache_tokens=8192)
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def engine(shared_engine: EmbeddedEngine) -> Iterator[EmbeddedEngine]:
    """A running engine; each test must leave it empty and healthy."""
    yield shared_engine
    assert shared_engine.health() is None
    assert shared_engine.loop.live_ids == set()


@pytest.fixture
def wire(engine: EmbeddedEngine) -> Wire:
    return Wire(engine)
