"""Which transport goes with an engine and with the devices of both ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.sync.file import FileTransport
from agentrl.sync.gloo import GlooTransport
from agentrl.sync.ipc import IpcTransport
from agentrl.sync.nccl import NcclTransport
from agentrl.sync.remote import Transport
from agentrl.urls import hide_passwords, is_loopback

TransportName = Literal["memory", "file", "gloo", "nccl", "ipc"]


def choose_transport(config: RunConfig, trainer: Sequence[str]) -> TransportName:
    """The transport of a run. `trainer`: the device of each of its ranks, "cpu" or "cuda:1".

    Raises ConfigError where the transport that was asked for can't work between these devices.
    """
    if config.engine.name != "vllm":
        return "memory"
    engine = [f"cuda:{number}" for number in config.engine.devices]
    refused = {"ipc": _no_ipc(trainer, engine), "nccl": _no_nccl(trainer, engine), "gloo": _no_gloo(config.engine.urls)}
    asked = config.sync.transport
    if asked == "auto":
        fastest: tuple[TransportName, ...] = ("ipc", "nccl", "gloo")
        return next((name for name in fastest if refused[name] is None), "file")
    if why := refused.get(asked):
        raise ConfigError(f"sync.transport={asked}: {why}; leave it out, or choose another")
    return asked


def make_transport(name: TransportName, folder: Path) -> Transport:
    """A transport between processes; `folder` is for files."""
    kinds: dict[str, Callable[[], Transport]] = {"gloo": GlooTransport, "nccl": NcclTransport, "ipc": IpcTransport}
    return FileTransport(folder) if name == "file" else kinds[name]()


def _no_ipc(trainer: Sequence[str], engine: Sequence[str]) -> str | None:
    if list(trainer) == list(engine) and len(engine) == 1:
        return None
    return f"trainer and engine must share one GPU, here they are on {', '.join(trainer)} and {_shown(engine)}"


def _no_nccl(trainer: Sequence[str], engine: Sequence[str]) -> str | None:
    if engine and "cpu" not in trainer and trainer[0] not in engine:
        return None
    return f"trainer and engine must be on different GPUs, here they are on {trainer[0]} and {_shown(engine)}"


def _no_gloo(urls: Sequence[str]) -> str | None:
    far = [hide_passwords(url) for url in urls if not is_loopback(url)]
    return f"it goes over loopback, and {', '.join(far)} is on another machine" if far else None


def _shown(engine: Sequence[str]) -> str:
    return ", ".join(engine) or "the CPU (engine.devices names no GPU)"
