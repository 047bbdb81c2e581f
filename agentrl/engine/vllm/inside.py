"""What runs inside a vLLM server: the key for every route, and weights that come in a file.

vLLM imports this by name (`--middleware`, `--worker-extension-cls`); nobody else does. Its own key guards only some
routes, and not those that change weights. Its own ways of receiving weights need a GPU.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

KEY_VARIABLE = "AGENTRL_ENGINE_KEY"
_RECEIVED: dict[str, str] = {}
"""sha256 of each tensor of the last update, as it arrived in this worker."""


class RequireKey:
    """ASGI middleware: nothing is answered without the key, but for `/health`."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self._expected = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope.get("path") == "/health" or self._shows_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = b'{"error": {"message": "the key is wrong or missing", "code": 401}}'
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _shows_key(self, scope: dict[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)


class WorkerExtension:
    """Methods that the worker gets, for `/collective_rpc`."""

    def agentrl_received(self) -> dict[str, str]:
        """See `_RECEIVED`."""
        return dict(_RECEIVED)


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing has to be agreed on."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """A safetensors file with all tensors by their Hugging Face names."""

    path: str


class FileEngine(WeightTransferEngine):
    """Weights from a file on a disk that trainer and server share."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Raises ValueError, naming tensors, where the file isn't the whole model: the layers stay unserved."""
        with safe_open(update_info.path, framework="pt") as file:
            # Where vLLM ties the head it skips what is sent for it.
            tied = {"lm_head.weight"} if self.model_config.hf_config.tie_word_embeddings else set()
            _check_names(set(file.keys()) - tied, _names_of(Path(self.model_config.model)) - tied)
            self.model.load_weights(_noted((name, file.get_tensor(name)) for name in file.keys()))  # noqa: SIM118

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        _refresh_head(self.model)

    def shutdown(self) -> None:
        """Nothing to do."""


def _noted(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    _RECEIVED.clear()
    for name, tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        _RECEIVED[name] = hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        yield name, tensor


def _names_of(folder: Path) -> set[str]:
    """The tensors of the model folder that the server was started with."""
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names |= set(file.keys())
    return names


def _check_names(sent: set[str], expected: set[str]) -> None:
    problems = [
        f"{what}: {', '.join(sorted(names)[:4])}"
        for what, names in (("missing", expected - sent), ("unexpected", sent - expected))
        if names
    ]
    if problems:
        raise ValueError("the weights are not those of the model that was loaded; " + "; ".join(problems))


def _refresh_head(model: Any) -> None:
    """On a CPU linear layers keep a packed copy, and that of a tied head is not renewed by a reload."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


WeightTransferEngineFactory.register_engine("file", FileEngine)
