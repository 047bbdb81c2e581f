"""A stage with the tiny model's tokenizer, and a run that was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.rollout.renderer import Renderer
from tests.replay.stage import Stage
from tests.replay.trained import Trained, train_twice


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> Stage:
    tokenizer: Any = renderer.tokenizer
    tokenizer.save_pretrained(tmp_path / "model")
    return Stage(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_twice(tmp_path_factory.mktemp("trained"))
