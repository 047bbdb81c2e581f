"""Which device each rank computes on."""

from __future__ import annotations

from agentrl.config import TrainConfig
from agentrl.errors import ConfigError


def choose_devices(config: TrainConfig, num_gpus: int) -> list[str]:
    """One device per rank, in torch's words. Raises ConfigError for GPUs that aren't among the `num_gpus` seen."""
    if config.device == "cpu" or (config.device == "auto" and num_gpus == 0):
        if config.devices is not None:
            raise ConfigError(
                f"train.devices={config.devices}: torch sees no GPU here; leave it out to train on the CPU"
            )
        return ["cpu"] * config.ranks
    chosen = list(range(config.ranks)) if config.devices is None else config.devices
    unknown = [number for number in chosen if number >= num_gpus]
    if unknown:
        asked = f"train.ranks={config.ranks}" if config.devices is None else f"train.devices={config.devices}"
        raise ConfigError(
            f"{asked} with train.device={config.device}: there is no GPU {unknown[0]}, torch sees {num_gpus} here, "
            "numbered from 0; use fewer ranks, other devices, or train.device=cpu"
        )
    return [f"cuda:{number}" for number in chosen]
