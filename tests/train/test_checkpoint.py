"""Checkpoints: going on from one is the same as never having stopped, and half of one is none."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
from safetensors import SafetensorError

from agentrl.errors import ModelError
from agentrl.train import checkpoint
from agentrl.train.policy import Policy

from .builders import make_groups, make_policy, make_rows, make_trainer


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_going_on_from_a_checkpoint_is_bitwise_the_same(tmp_path: Path, optimizer: str) -> None:
    rows = make_rows(make_groups(1, branching=True))
    state = {"step": 2, "version": 5}
    with make_policy() as policy:
        trainer = make_trainer(policy, updates_per_step=2, weight_decay=0.1, optimizer=optimizer)
        trainer.step(rows, 0)
        trainer.step(rows, 1)
        trainer.num_bad_updates = 1
        assert checkpoint.save(tmp_path / "2", policy, trainer, state) == tmp_path / "2"
        report = trainer.step(rows, 2)
        expected = policy.weights_hash()
    with Policy.load(tmp_path / "2", device="cpu", threads=1) as policy:
        trainer = make_trainer(policy, updates_per_step=2, weight_decay=0.1, optimizer=optimizer)
        assert checkpoint.load(tmp_path / "2", trainer) == state
        assert trainer.num_bad_updates == 1
        again = trainer.step(rows, 2)
        assert policy.weights_hash() == expected
    assert again.metrics == pytest.approx(report.metrics, rel=0, abs=0, nan_ok=True)


def test_without_the_optimizer_it_would_differ(tmp_path: Path) -> None:
    rows = make_rows(make_groups(1))
    with make_policy() as policy:
        trainer = make_trainer(policy)
        trainer.step(rows, 0)
        checkpoint.save(tmp_path / "1", policy, trainer, {})
        trainer.step(rows, 1)
        expected = policy.weights_hash()
    with Policy.load(tmp_path / "1", device="cpu", threads=1) as policy:
        make_trainer(policy).step(rows, 1)
        assert policy.weights_hash() != expected


def test_a_checkpoint_before_the_first_update(tmp_path: Path) -> None:
    with make_policy() as policy:
        trainer = make_trainer(policy)
        checkpoint.save(tmp_path / "0", policy, trainer, {"step": 0})
        assert checkpoint.load(tmp_path / "0", trainer) == {"step": 0}


def test_nothing_is_pickled(tmp_path: Path) -> None:
    with make_policy() as policy:
        checkpoint.save(tmp_path / "0", policy, make_trainer(policy), {})
    assert {path.suffix for path in (tmp_path / "0").iterdir()} == {".json", ".safetensors", ".tensors"}


def test_a_server_finds_only_weights_in_it(tmp_path: Path) -> None:
    """vLLM reads every *.safetensors of a model folder."""
    with make_policy() as policy:
        checkpoint.save(tmp_path / "0", policy, make_trainer(policy), {})
    assert [path.name for path in (tmp_path / "0").glob("*.safetensors")] == ["model.safetensors"]


def test_a_checkpoint_that_names_its_optimizer_otherwise_is_read(tmp_path: Path) -> None:
    with make_policy() as policy:
        trainer = make_trainer(policy)
        folder = checkpoint.save(tmp_path / "0", policy, trainer, {"step": 0})
        (folder / "optimizer.tensors").rename(folder / "optimizer.safetensors")
        record = (folder / "state.json").read_text().replace("optimizer.tensors", "optimizer.safetensors")
        (folder / "state.json").write_text(record)
        assert checkpoint.load(folder, trainer) == {"step": 0}


def test_latest_ignores_what_is_not_whole(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.latest(tmp_path) is None
    with make_policy() as policy:
        trainer = make_trainer(policy)
        folders = [checkpoint.save(tmp_path / name, policy, trainer, {}) for name in ("9", "10", "11", "12")]
        (tmp_path / ".partial-13-77").mkdir()
        (tmp_path / "notes").mkdir()
        (tmp_path / "file").write_text("")
        assert checkpoint.latest(tmp_path) == folders[3]
        (folders[3] / "state.json").write_text((folders[3] / "state.json").read_text()[:40])
        assert checkpoint.latest(tmp_path) == folders[2]
        (folders[2] / "optimizer.tensors").unlink()
        assert checkpoint.latest(tmp_path) == folders[1]
        with (folders[1] / "model.safetensors").open("r+b") as file:
            file.truncate(100)
        assert checkpoint.latest(tmp_path) == folders[0]
        with pytest.raises(ModelError, match="not a complete checkpoint"):
            checkpoint.load(folders[1], trainer)


def test_altered_files_and_other_weights_are_refused(tmp_path: Path) -> None:
    with make_policy(seed=1) as policy, make_policy(seed=2) as other:
        folder = checkpoint.save(tmp_path / "0", policy, make_trainer(policy), {})
        with pytest.raises(ModelError, match="doesn't hold the weights"):
            checkpoint.load(folder, make_trainer(other))
        config = (folder / "config.json").read_text()
        (folder / "config.json").write_text(config.replace("silu", "gelu"))
        with pytest.raises(ModelError, match=r"altered.*config\.json"):
            checkpoint.verify(folder)


@pytest.mark.parametrize("num_bytes", [0, 1000, 20_000])
def test_j06_a_disk_that_fills_in_a_save_leaves_the_old_checkpoint(tmp_path: Path, num_bytes: int) -> None:
    """No file may grow beyond `num_bytes`: the kernel refuses the write in the middle of a file."""
    with make_policy() as policy:
        trainer = make_trainer(policy)
        folder = checkpoint.save(tmp_path / "0", policy, trainer, {"step": 1})
        trainer.step(make_rows(make_groups(1)), 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
        try:
            with pytest.raises((OSError, SafetensorError)):
                checkpoint.save(tmp_path / "1", policy, trainer, {"step": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, previous)
        assert checkpoint.latest(tmp_path) == folder
        assert checkpoint.verify(folder)["state"] == {"step": 1}
        checkpoint.prune(tmp_path, keep_last=1, keep_best=False)
        assert [path.name for path in tmp_path.iterdir()] == ["0"], "what a failed write left is cleaned up"


def test_a_crash_while_writing_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_policy() as policy:
        trainer = make_trainer(policy)
        folder = checkpoint.save(tmp_path / "0", policy, trainer, {"step": 1})
        trainer.step(make_rows(make_groups(1)), 0)
        with pytest.raises(ValueError, match="JSON compliant"):
            checkpoint.save(folder, policy, trainer, {"step": float("nan")})
        assert checkpoint.latest(tmp_path) == folder
        assert checkpoint.verify(folder)["state"] == {"step": 1}
        checkpoint.save(folder, policy, trainer, {"step": 2})
        assert checkpoint.verify(folder)["state"] == {"step": 2}
        assert json.loads((folder / "state.json").read_text())["weights_hash"] == policy.weights_hash()
    assert [path.name for path in tmp_path.iterdir()] == ["0"], "what a failed write left is cleaned up by the next"
