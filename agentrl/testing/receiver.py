"""A RemoteReceiver without a server: a transformers model in this process, for tests of what sends to it.

Tensors come as they do to a vLLM worker, by the same code (`agentrl.transfer`); only pausing has nothing to pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from agentrl.errors import EngineError
from agentrl.transfer import GlooGroup, Manifest, check_shapes, checksum, read_file


class ModelReceiver:
    """Serves `model`; `calls` are the names of the methods in the order in which they were called."""

    num_workers = 1

    def __init__(self, name: str, model: Any) -> None:
        self.name = name
        self.calls: list[str] = []
        self.version = 0
        self.is_stopped = False
        self._model = model
        self._is_updating = False
        self._group: GlooGroup | None = None

    async def pause(self, mode: str = "keep", canary_ids: Sequence[int] = ()) -> None:
        """Nothing runs here."""
        self._note(f"pause {mode}")

    async def meet(self, transport: str, options: dict[str, Any]) -> None:
        """By file or gloo."""
        self._note("meet")
        self._hang_up()
        if transport == "gloo":
            place = {"rank": options["first_rank"], "size": options["size"], "timeout_s": options["timeout_s"]}
            try:
                self._group = await asyncio.to_thread(lambda: GlooGroup(Path(options["meeting_file"]), **place))
            except RuntimeError as error:
                raise EngineError(f"engine {self.name!r}: {error}") from error

    async def begin_update(self) -> None:
        """May be called again."""
        self._note("begin_update")
        self._is_updating = True

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        """Raises EngineError for all that a vLLM worker refuses."""
        self._note("receive")
        if not self._is_updating:
            raise EngineError(f"engine {self.name!r}: no update has begun")
        try:
            return await asyncio.to_thread(self._receive, manifest, options)
        except (ValueError, RuntimeError) as error:
            self._is_updating = False
            self._hang_up()
            raise EngineError(f"engine {self.name!r}: {error}") from error

    async def end_update(self, version: int) -> None:
        """In force."""
        self._note("end_update")
        self.version, self._is_updating = version, False

    async def resume(self) -> None:
        """Nothing was paused."""
        self._note("resume")

    async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
        """By one forward pass."""
        self._note("score")
        with torch.no_grad():
            logits = self._model(torch.tensor([prompt_ids + forced_ids])).logits[0, len(prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), -1)
        picked = logprobs[range(len(forced_ids)), forced_ids]
        return picked.tolist(), [self.version] * len(forced_ids)

    async def stop(self) -> None:
        """It answers nothing any more."""
        self.is_stopped = True
        self._hang_up()

    @torch.no_grad()
    def _receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        manifest.check_names()
        held = {name: tensor.detach() for name, tensor in self._model.state_dict().items()}
        check_shapes(manifest.named_shapes(), {name: list(t.shape) for name, t in held.items()}, "what is sent")
        sums: dict[str, str] = {}
        for name, tensor in zip(manifest.names, self._arriving(manifest, options), strict=True):
            held[name].copy_(tensor)
            sums[name] = checksum(tensor)
        return sums | {other: sums[name] for other, name in manifest.tied.items()}

    def _arriving(self, manifest: Manifest, options: dict[str, Any]) -> Iterator[torch.Tensor]:
        if self._group is None:
            return read_file(Path(options["path"]), manifest)
        return self._group.broadcast(manifest.empty())

    def _note(self, call: str) -> None:
        if self.is_stopped:
            raise EngineError(f"engine {self.name!r} was ended")
        self.calls.append(call)

    def _hang_up(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None
