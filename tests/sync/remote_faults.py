"""Transports that go wrong, for tests against engines in this process and real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from agentrl.sync.base import RemoteReceiver
from agentrl.sync.choose import make_transport
from agentrl.sync.remote import Sent, Transport

NORM = "model.norm.weight"
GATE = "model.layers.0.mlp.gate_proj.weight"


class Gate:
    """Stands for the client: what became of the replies that it held."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.log.append("held")
        try:
            yield
        except BaseException:
            self.log.append("failed")
            raise
        self.log.append("delivered")


class Broken(dict[str, torch.Tensor]):
    """Tensors that are described whole, and can't be sent to the end."""

    num_read = 0
    """Its dtypes, then its shapes, are read before it is sent."""

    def values(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        for number, tensor in enumerate(super().values()):
            if number == 3 and self.num_read == 2:
                raise RuntimeError("the trainer fails here")
            yield tensor
        self.num_read += 1


def partial(sent: Sent) -> Sent:
    return Sent(tensors={name: tensor for name, tensor in sent.tensors.items() if name != NORM}, tied=sent.tied)


def renamed(sent: Sent) -> Sent:
    return Sent(tensors={n.replace(GATE, "module." + GATE): t for n, t in sent.tensors.items()}, tied=sent.tied)


def changed(sent: Sent) -> Sent:
    """One bit of a tensor is another one."""
    tensors = {name: tensor.clone() for name, tensor in sent.tensors.items()}
    tensors[NORM].view(torch.int32)[0] ^= 1
    return Sent(tensors=tensors, tied=sent.tied)


def reshaped(sent: Sent) -> Sent:
    return Sent(tensors=sent.tensors | {NORM: sent.tensors[NORM][:-1].clone()}, tied=sent.tied)


def torn(sent: Sent) -> Sent:
    """It ends in the middle; a file is cut by `Twisted`."""
    return Sent(tensors=Broken(sent.tensors), tied=sent.tied)


FAULTS = {
    partial: f"missing: {NORM}",
    renamed: f"missing: {GATE}; unexpected: module.{GATE}",
    changed: f"other bytes than were sent arrived for {NORM}",
    reshaped: f"of another shape: {NORM}",
    torn: "the weights could not be sent by gloo|is torn or gone|Connection closed|Read error|pair closed",
}
"""What is said where the fault stays."""


class Twisted(Transport):
    """The real transport, to which something else is given in the first `num` tries."""

    def __init__(self, name: str, folder: Path, twist: Callable[[Sent], Sent], num: int) -> None:
        self._inner = make_transport(name, folder)  # type: ignore[arg-type]
        self._folder = folder
        self._twist = twist
        self.num_left = num
        self._given: Sent | None = None

    def connect(self, engines: Sequence[RemoteReceiver]) -> None:
        self._inner.connect(engines)

    async def prepare(self, sent: Sent) -> None:
        is_twisted, self.num_left = self.num_left > 0, self.num_left - 1
        is_file = not isinstance(self._inner, type(make_transport("gloo", self._folder)))
        cuts_file = is_twisted and is_file and self._twist is torn
        self._given = self._twist(sent) if is_twisted and not cuts_file else sent
        await self._inner.prepare(self._given)
        if cuts_file:
            (path,) = self._folder.glob("*.safetensors")
            path.write_bytes(path.read_bytes()[:-1000])

    async def deliver(self, sent: Sent) -> list[dict[str, str]]:
        assert self._given is not None
        return await self._inner.deliver(self._given)

    def clean(self) -> None:
        self._inner.clean()

    def close(self) -> None:
        self._inner.close()
