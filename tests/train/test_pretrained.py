"""Models by folder and by Hugging Face id."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import ModelError
from agentrl.train.pretrained import FILES, local_folder


def resolve(id: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, without a network: the hub client reads its settings when it is imported."""
    code = f"from agentrl.train.pretrained import local_folder; print(local_folder({id!r}))"
    env = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_an_id_is_found_in_the_local_cache(tmp_path: Path) -> None:
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    done = resolve("some/model", tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, str(snapshot)), done.stderr
    missing = resolve("some/other", tmp_path)
    assert missing.returncode == 1 and "ModelError: no model at some/other" in missing.stderr


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert local_folder("~/mine") == tmp_path / "mine" == local_folder(tmp_path / "mine")


def test_nothing_that_runs_code_when_it_is_read_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def refuse(id: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelError, match=r"some/model.*no network"):
        local_folder("some/model")
    assert asked == [FILES]
    assert not any(name.endswith((".bin", ".pt", ".pkl", ".py")) for name in FILES)
