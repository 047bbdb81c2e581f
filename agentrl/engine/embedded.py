"""The embedded engine: a model of its own, continuous batching and an HTTP server, in this process.

```
HTTP request → server (checks) → loop (continuous batching) → attention, sampling → reply → HTTP
                                  ▲ paused() ◀── weights.load ◀── WeightSync
```
Left out against a full server: text (no tokenizer), streaming, several choices per request, prefix sharing (blocks
of older weights would serve newer ones), tensor parallelism.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.base import GenerationLoop
from agentrl.engine.loop import PAGE_TOKENS, BatchingLoop
from agentrl.engine.requests import EngineLimits
from agentrl.engine.server import EngineServer
from agentrl.engine.weights import EngineWeights, LoadReport
from agentrl.errors import EngineError, ModelError

MAX_CACHE_TOKENS, MAX_CACHE_BYTES = 65536, 2**30
_SCORE_TIMEOUT_S = 300.0
_Part = TypeVar("_Part")


class EmbeddedEngine:
    """Serves the model in a folder. Use as `async with`, or `start()` and `stop()`.

    `threads` are torch's and, through its math library, the whole process's; None leaves them as they are.
    `cache_tokens` is the size of the key-value pool; requests that don't fit it together take turns. None:
    MAX_CACHE_TOKENS, or what MAX_CACHE_BYTES hold.
    `version` is that of the weights in the folder.
    """

    loop_class: type[GenerationLoop] = BatchingLoop

    def __init__(
        self,
        model_path: str | Path,
        *,
        name: str = "embedded",
        threads: int | None = None,
        max_batch_tokens: int = 1024,
        cache_tokens: int | None = None,
        device: str = "auto",
        version: int = 0,
    ) -> None:
        self.name = name
        """The served model's name, and this engine's in records and errors."""
        self._model_path = Path(model_path)
        self._threads = threads
        self._max_batch_tokens = max_batch_tokens
        self._cache_tokens = cache_tokens
        self._device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._first_version = version
        self._loop: GenerationLoop | None = None
        self._server: EngineServer | None = None
        self._weights: EngineWeights | None = None
        self._limits: EngineLimits | None = None

    # ------------------------------------------------------------------------------------------- start and stop

    def start(self) -> None:
        """Load the model and serve it. Blocks for seconds; the global random state is the same afterwards.

        Raises ModelError where the folder can't be served.
        """
        if self._loop is not None:
            raise RuntimeError(f"engine {self.name!r} was started before; make a new one")
        with torch.random.fork_rng():  # loading draws random weights before it overwrites them
            model = _load_model(self._model_path, self._device)
        cache_tokens = self._cache_tokens or _default_cache_tokens(model)
        self._limits = _limits(model, cache_tokens)
        self._loop = self.loop_class(
            model,
            max_batch_tokens=self._max_batch_tokens,
            cache_tokens=cache_tokens,
            threads=self._threads,
            version=self._first_version,
        )
        self._weights = EngineWeights(model, self._loop)
        self._server = EngineServer(self._loop, self._limits, self.name)
        try:
            self._loop.start()
            self._server.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the loop and the server; open requests end as "abort". May be called more than once."""
        if self._loop is not None:
            self._loop.stop()
        if self._server is not None:
            self._server.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Shielded: a cancelled owner must not leave the threads running.
        await asyncio.shield(asyncio.to_thread(self.stop))

    # ------------------------------------------------------------------------------------------------- serving

    @property
    def url(self) -> str:
        """http://127.0.0.1:<port>."""
        return self._started(self._server).url

    @property
    def key(self) -> str:
        """The bearer token that requests must show."""
        return self._started(self._server).key

    @property
    def max_model_len(self) -> int:
        """Prompt and sampled ids of one request together, at most."""
        return self._started(self._limits).max_model_len

    @property
    def loop(self) -> GenerationLoop:
        """The generation loop."""
        return self._started(self._loop)

    def health(self) -> str | None:
        """None, or why nothing is served."""
        return self.loop.health()

    # ------------------------------------------------------------------------------------------------- weights

    @property
    def version(self) -> int:
        """The version of the weights in force."""
        return self.loop.version

    def tensor_names(self) -> list[str]:
        """All names that a load may or must send; tied tensors appear under each of their names."""
        return list(self._started(self._weights).dtypes())

    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype that the engine holds each tensor in."""
        return self._started(self._weights).dtypes()

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
        """Put new weights in force between two steps; see EngineWeights.load. Blocks."""
        return self._started(self._weights).load(version, tensors)

    def checksums(self) -> dict[str, str]:
        """BLAKE3 of each tensor that is served; see EngineWeights.checksums. Blocks."""
        return self._started(self._weights).checksums()

    def weights_hash(self) -> str:
        """One hash over all weights that are served; see EngineWeights.weights_hash. Blocks."""
        return self._started(self._weights).weights_hash()

    def refuse(self, reason: str) -> None:
        """Serve nothing until a load succeeds: the weights could not be proved."""
        self.loop.refuse(reason)

    async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
        """Logprobs and versions of `forced_ids` after `prompt_ids`, by the path that serves rollouts.

        Raises EngineError.
        """
        sampling = {"trace_decode_token_ids": forced_ids, "temperature": 1.0}
        body = {"token_ids": prompt_ids, "sampling_params": sampling}
        choice = (await self._post("/inference/v1/generate", body))["choices"][0]
        versions = [-1] * len(forced_ids)
        for span in choice["weight_versions"]:
            versions[span["start"] : span["end"]] = [int(span["version"])] * (span["end"] - span["start"])
        return [entry["logprob"] for entry in choice["logprobs"]["content"]], versions

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        timeout = aiohttp.ClientTimeout(total=_SCORE_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.post(self.url + path, json=body) as response,
            ):
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"engine {self.name!r} at {self.url}{path}: {error!r}") from error
        if response.status != 200:
            raise EngineError(f"engine {self.name!r} at {self.url}{path}: {answer['error']['message']}")
        return answer

    def _started(self, part: _Part | None) -> _Part:
        if part is None:
            raise RuntimeError(f"engine {self.name!r} is not started")
        return part


def _load_model(path: Path, device: str) -> PreTrainedModel:
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} holds no config.json: the engine needs a Hugging Face model folder")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        raise ModelError(f"the engine can't load the model in {path}: {error}") from error
    layer_types = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise ModelError(f"the model in {path} has {sorted(layer_types)} layers; only full attention is served")
    served: PreTrainedModel = model.to(device).requires_grad_(False)
    return served


def _default_cache_tokens(model: PreTrainedModel) -> int:
    config: Any = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    num_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * num_heads * head_size * model.dtype.itemsize
    return int(min(MAX_CACHE_TOKENS, MAX_CACHE_BYTES // token_bytes))


def _limits(model: PreTrainedModel, cache_tokens: int) -> EngineLimits:
    pool = cache_tokens // PAGE_TOKENS * PAGE_TOKENS
    window = int(getattr(model.config, "max_position_embeddings", pool))
    eos_ids: set[int] = set()
    for config in (model.config, model.generation_config):
        eos = getattr(config, "eos_token_id", None)
        eos_ids |= set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    embeddings: Any = model.get_input_embeddings()
    vocab_size = int(embeddings.weight.shape[0])
    return EngineLimits(vocab_size=vocab_size, max_model_len=min(window, pool), eos_ids=frozenset(eos_ids))
