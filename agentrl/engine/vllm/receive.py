"""Weights as a vLLM worker receives them: checked by name and shape, summed up as they arrive, loaded layer by layer.

vLLM imports this in the worker; nobody else does. Its own ways of receiving weights need a GPU, and none of them says
what arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from agentrl.transfer import (
    GlooGroup,
    Manifest,
    check_shapes,
    checksum,
    local_folder,
    read_file,
    read_handle,
    read_shapes,
)

BACKEND = "agentrl"
HEAD = "lm_head.weight"
Named = Iterable[tuple[str, torch.Tensor]]
Load = Callable[[Named], Any]


@dataclass
class MeetInfo(WeightTransferInitInfo):
    """How tensors will travel."""

    transport: str
    options: dict[str, Any]


@dataclass
class ReceiveInfo(WeightTransferUpdateInfo):
    """What travels now: the fields of a Manifest, and what else the transport says."""

    manifest: dict[str, Any]
    options: dict[str, Any]


class Receiver(ABC):
    """One way for tensors to get here."""

    @abstractmethod
    def receive(self, manifest: Manifest, options: dict[str, Any], load: Load) -> None:
        """Call `load` with the tensors of the manifest, in one call or in several."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of the trainer. May be called more than once."""


class FileReceiver(Receiver):
    """From a safetensors file."""

    def __init__(self, engine: WeightTransferEngine) -> None:
        """Nothing has to be agreed on."""

    def receive(self, manifest: Manifest, options: dict[str, Any], load: Load) -> None:
        load(zip(manifest.names, read_file(Path(options["path"]), manifest), strict=True))


class GlooReceiver(Receiver):
    """By broadcasts, one per tensor."""

    def __init__(
        self, engine: WeightTransferEngine, *, meeting_file: str, first_rank: int, size: int, timeout_s: float
    ) -> None:
        rank = first_rank + _worker_index(engine)
        self._group = GlooGroup(Path(meeting_file), rank=rank, size=size, timeout_s=timeout_s)

    def receive(self, manifest: Manifest, options: dict[str, Any], load: Load) -> None:
        load(zip(manifest.names, self._group.broadcast(manifest.empty()), strict=True))

    def close(self) -> None:
        self._group.close()


class NcclReceiver(Receiver):
    """By vLLM's own engine."""

    def __init__(self, engine: WeightTransferEngine, **options: Any) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

        self._engine = NCCLWeightTransferEngine(engine.config, engine.vllm_config, engine.device, engine.model)
        self._engine.init_transfer_engine(self._engine.parse_init_info(options))

    def receive(self, manifest: Manifest, options: dict[str, Any], load: Load) -> None:
        self._engine.model = _Loader(load)
        self._engine.receive_weights(self._engine.parse_update_info(_fields(manifest)))

    def close(self) -> None:
        self._engine.shutdown()


class IpcReceiver(Receiver):
    """By vLLM's own engine, from the trainer's memory on the same GPU."""

    def __init__(self, engine: WeightTransferEngine) -> None:
        from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

        self._engine = IPCWeightTransferEngine(engine.config, engine.vllm_config, engine.device, engine.model)

    def receive(self, manifest: Manifest, options: dict[str, Any], load: Load) -> None:
        handles = [{gpu: read_handle(written) for gpu, written in of_one.items()} for of_one in options["handles"]]
        self._engine.model = _Loader(load)
        self._engine.receive_weights(self._engine.parse_update_info(_fields(manifest) | {"ipc_handles": handles}))

    def close(self) -> None:
        self._engine.shutdown()


_RECEIVERS: dict[str, Callable[..., Receiver]] = {
    "file": FileReceiver,
    "gloo": GlooReceiver,
    "nccl": NcclReceiver,
    "ipc": IpcReceiver,
}


class AgentrlWeightTransferEngine(WeightTransferEngine):
    """What all ways have in common."""

    init_info_cls = MeetInfo
    update_info_cls = ReceiveInfo
    received: dict[str, str]
    """BLAKE3 of each tensor of the last update, as it arrived in this worker, under all its names."""
    _receiver: Receiver | None = None
    _has_tied_head = False
    """Does vLLM hold head and embedding as one? Not where the model's file stores both, whatever its config says."""

    def init_transfer_engine(self, init_info: MeetInfo) -> None:
        self.shutdown()
        self._receiver = _RECEIVERS[init_info.transport](self, **init_info.options)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        named = dict(self.model.named_parameters(remove_duplicate=False))
        head = named.pop(HEAD, None)
        self._has_tied_head = any(parameter is head for parameter in named.values())
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ReceiveInfo) -> None:
        """Raises ValueError, naming tensors, where what is sent isn't the whole model."""
        self.received = {}
        try:
            manifest = Manifest(**update_info.manifest)
            self._check(manifest)
            self.received = self._load(manifest, update_info.options)
        except BaseException:
            self.shutdown()  # whoever sends, finds out
            # A layer that has got only some of its tensors would take those of the next try for surplus.
            self.finish_weight_update()
            raise

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        refresh_head(self.model)

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def _load(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        """Checksums of what arrived. A tied head is renewed at the end (`refresh_head`), so it isn't loaded too."""
        assert self._receiver is not None, "nothing was agreed on: meet first"
        sums: dict[str, Future[str]] = {}
        with ThreadPoolExecutor(1) as thread:

            def load(pairs: Named) -> None:
                named = _summed_up(pairs, manifest.tied, sums, thread)
                self.model.load_weights(pair for pair in named if pair[0] != HEAD or not self._has_tied_head)

            self._receiver.receive(manifest, options, load)
            return {name: future.result() for name, future in sums.items()}

    def _model_folder(self) -> Path:
        """Where the worker's own weights came from: a server of somebody else may have been given an id."""
        cache = self.vllm_config.load_config.download_dir
        return local_folder(self.model_config.model, revision=self.model_config.revision, cache=cache)

    def _check(self, manifest: Manifest) -> None:
        """The names on both sides, and their shapes, before anything is loaded."""
        manifest.check_names()
        sent, expected = manifest.named_shapes(), read_shapes(self._model_folder())
        if self.model_config.hf_config.tie_word_embeddings:  # vLLM skips what is sent for a head that it ties
            sent.pop(HEAD, None)
            expected.pop(HEAD, None)
        check_shapes(sent, expected, "what is sent")


def _summed_up(
    pairs: Named, tied: dict[str, str], sums: dict[str, Future[str]], thread: ThreadPoolExecutor
) -> Iterator[tuple[str, torch.Tensor]]:
    """The pairs, tied ones under all their names. Sums are computed beside the loading."""
    names: dict[str, list[str]] = {}
    for other, name in tied.items():
        names.setdefault(name, []).append(other)
    for name, tensor in pairs:
        arrived = _sum_of(tensor, thread)
        for each in (name, *names.get(name, ())):
            sums[each] = arrived
            yield each, tensor


def _sum_of(tensor: torch.Tensor, thread: ThreadPoolExecutor) -> Future[str]:
    """Of a tensor on a GPU at once: its buffer may be used again as soon as it is loaded."""
    if not tensor.is_cuda:
        return thread.submit(checksum, tensor)
    done = Future[str]()
    done.set_result(checksum(tensor))
    return done


@dataclass
class _Loader:
    """Stands for the model where vLLM's own engines load."""

    load_weights: Load


def _fields(manifest: Manifest) -> dict[str, Any]:
    """A manifest as vLLM's own engines take it."""
    fields = asdict(manifest)
    del fields["tied"]
    return fields


def _worker_index(engine: WeightTransferEngine) -> int:
    """Of this worker among those of its server."""
    config = engine.parallel_config
    return int(config.data_parallel_index * config.world_size + config.rank)


def refresh_head(model: Any) -> None:
    """On a CPU linear layers keep a packed copy, and that of a tied head stays where only its partner is sent.

    The partner's is of the same bytes, so it is shared.
    """
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        partners = (layer for layer in model.modules() if getattr(layer, "weight", None) is head.weight)
        head.cpu_linear = next(partners).cpu_linear


WeightTransferEngineFactory.register_engine(BACKEND, AgentrlWeightTransferEngine)
