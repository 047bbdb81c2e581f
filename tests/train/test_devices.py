"""Which GPUs the ranks get, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.cli import main
from agentrl.config import TrainConfig
from agentrl.errors import ConfigError
from agentrl.train.devices import choose_devices


@pytest.mark.parametrize(
    ("config", "num_gpus", "expected"),
    [
        ({}, 0, ["cpu"]),
        ({"ranks": 3}, 0, ["cpu"] * 3),
        ({"ranks": 2, "device": "cpu"}, 8, ["cpu"] * 2),
        ({}, 8, ["cuda:0"]),
        ({"ranks": 2}, 2, ["cuda:0", "cuda:1"]),
        ({"ranks": 2, "devices": [5, 3]}, 8, ["cuda:5", "cuda:3"]),
        ({"device": "cuda", "devices": [7]}, 8, ["cuda:7"]),
    ],
)
def test_one_device_per_rank(config: dict[str, Any], num_gpus: int, expected: list[str]) -> None:
    assert choose_devices(TrainConfig(**config), num_gpus) == expected


@pytest.mark.parametrize(
    ("config", "num_gpus", "message"),
    [
        ({"ranks": 3}, 2, r"train.ranks=3 .*no GPU 2, torch sees 2"),
        ({"devices": [8]}, 8, r"train.devices=\[8\] .*no GPU 8, torch sees 8"),
        ({"device": "cuda"}, 0, r"train.device=cuda: there is no GPU 0"),
        ({"devices": [0]}, 0, r"train.devices=\[0\]: torch sees no GPU here"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(config: dict[str, Any], num_gpus: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_devices(TrainConfig(**config), num_gpus)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"ranks": 2, "devices": [1, 1]}, "each GPU once"),
        ({"devices": [-1]}, "each GPU once"),
        ({"ranks": 2, "devices": [1]}, "names 1 GPUs for ranks=2"),
        ({"devices": []}, "names 0 GPUs for ranks=1"),
        ({"device": "cpu", "devices": [0]}, "leave it out with device=cpu"),
    ],
)
def test_devices_that_cannot_be_meant_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**config)


@pytest.mark.parametrize("override", ["train.devices=[0,0]", "train.devices=[1000]"])
def test_a_wrong_device_is_exit_code_2(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "calculator", "train.ranks=1", override]) == 2
    assert "devices" in capsys.readouterr().err
