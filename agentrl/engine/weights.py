"""The engine's weights as a sync sees them: names, loading in place, checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from blake3 import blake3
from transformers import PreTrainedModel

from agentrl.engine.base import GenerationLoop


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """What became of a load. Unless the three last are empty nothing was copied and the old version is in force."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Names that the engine holds and that weren't sent. A tied name counts as sent with any of its partners."""
    unexpected: tuple[str, ...]
    """Names that were sent and that the engine doesn't hold."""
    mismatched: tuple[str, ...] = ()
    """Names whose shape differs, with both shapes."""

    @property
    def complete(self) -> bool:
        """Whether every tensor of the engine was replaced."""
        return not (self.missing or self.unexpected or self.mismatched)


class EngineWeights:
    """All named tensors of the model: parameters and persistent buffers, tied ones under each of their names."""

    def __init__(self, model: PreTrainedModel, loop: GenerationLoop) -> None:
        self._tensors: dict[str, torch.Tensor] = model.state_dict()
        self._loop = loop
        self._partners = _partners(self._tensors)

    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype that the engine holds each tensor in."""
        return {name: tensor.dtype for name, tensor in self._tensors.items()}

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
        """Copy the tensors in place and put `version` in force, between two steps of the loop.

        All names and shapes are checked before the first copy, for which the tensors are listed first: the caller's
        iterator is read to its end before serving pauses. A copy that fails half way leaves mixed weights: then the
        engine serves nothing until a load succeeds, and the error is raised.
        """
        sent = dict(tensors)
        report = self._compare(sent)
        if not report.complete:
            return report
        with self._loop.paused():
            try:
                self._copy(sent)
            except BaseException as error:
                self._loop.refuse(f"loading version {version} failed half way ({error!r}): publish again")
                raise
            self._loop.version = version
            self._loop.accept()
        return report

    def checksums(self) -> dict[str, str]:
        """BLAKE3 (hex) of each tensor's bytes, in C order and in the engine's dtype, read from the tensors served."""
        sums: dict[tuple[str, ...], str] = {}
        for name, tensor in self._tensors.items():
            partners = self._partners[name]
            if partners not in sums:
                sums[partners] = _checksum(tensor)
        return {name: sums[self._partners[name]] for name in self._tensors}

    def weights_hash(self) -> str:
        """SHA-256 over names, types, shapes and bytes, tied tensors once under their first name.

        The trainer's policy hashes alike: an engine in the trainer's type that holds its weights has its hash.
        """
        digest = hashlib.sha256()
        for name, tensor in self._tensors.items():
            if self._partners[name][0] == name:
                digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
                digest.update(_bytes(tensor))
        return digest.hexdigest()

    def _compare(self, sent: dict[str, torch.Tensor]) -> LoadReport:
        common = [name for name in sent if name in self._tensors]
        bad_shapes = [name for name in common if sent[name].shape != self._tensors[name].shape]
        return LoadReport(
            loaded=tuple(common),
            missing=tuple(n for n in self._tensors if not any(partner in sent for partner in self._partners[n])),
            unexpected=tuple(name for name in sent if name not in self._tensors),
            mismatched=tuple(
                f"{n}: sent {list(sent[n].shape)}, held {list(self._tensors[n].shape)}" for n in bad_shapes
            ),
        )

    @torch.no_grad()
    def _copy(self, sent: dict[str, torch.Tensor]) -> None:
        for name, tensor in sent.items():
            self._tensors[name].copy_(tensor)


def _partners(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[str, ...]]:
    """For each name all names of the same memory, itself included."""
    groups: dict[tuple[object, ...], list[str]] = {}
    memory = {name: (t.data_ptr(), t.shape, t.stride()) for name, t in tensors.items()}
    for name, place in memory.items():
        groups.setdefault(place, []).append(name)
    return {name: tuple(groups[place]) for name, place in memory.items()}


def _checksum(tensor: torch.Tensor) -> str:
    # The sync has a formula of its own for the trainer's side: a proof shouldn't share code with what it proves.
    return blake3(_bytes(tensor)).hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
