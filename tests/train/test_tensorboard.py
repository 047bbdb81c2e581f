"""The event file says what metrics.jsonl says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentrl.errors import ConfigError
from agentrl.estimate import Interval
from agentrl.train import tensorboard
from agentrl.train.tensorboard import Scalars


def read(folder: Path) -> dict[str, dict[int, float]]:
    """Tag → step → value, as TensorBoard shows them."""
    events = EventAccumulator(str(folder / tensorboard.FOLDER))
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_numbers_become_scalars_at_the_number_of_steps_done(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path)
    scalars.write("run", {"run": "r", "seed": 3})  # no curve
    assert not (tmp_path / tensorboard.FOLDER).exists()
    scalars.write(
        "eval", {"ordinal": 0, "sampling": "greedy", "success": 0.5, "success_interval": Interval(0.25, 0.75)}
    )
    scalars.write(
        "step", {"ordinal": 0, "reward_mean": 0.25, "seconds": {"train": 2.0}, "note": "x", "kl": float("nan")}
    )
    scalars.close()
    scalars.close()
    shown = read(tmp_path)
    assert shown["eval/greedy/success"] == {0: 0.5}
    assert shown["eval/greedy/success_interval/low"] == {0: 0.25}
    assert shown["step/reward_mean"] == {1: 0.25} and shown["step/seconds/train"] == {1: 2.0}
    assert not {"step/kl", "step/note", "run/seed"} & set(shown)  # what has no value has no point


def test_after_a_resume_the_steps_that_were_measured_again_count(tmp_path: Path) -> None:
    for first, reward in ((0, 0.25), (2, 0.75)):
        scalars = Scalars(tmp_path)
        for ordinal in range(first, 4):
            scalars.write("step", {"ordinal": ordinal, "reward_mean": reward})
        scalars.close()
    assert read(tmp_path)["step/reward_mean"] == {1: 0.25, 2: 0.25, 3: 0.75, 4: 0.75}


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    with pytest.raises(ConfigError, match=r"pip install 'agentrl\[tensorboard\]'"):
        tensorboard.check_installed()
