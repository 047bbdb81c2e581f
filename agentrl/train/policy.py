"""The policy: a causal LM under FSDP2 that answers with logprobs, and whose weights can be read, hashed and saved.

Weights are kept in float32 (float64 if asked) whatever the type of the forward pass, so that small updates are not
rounded away; `dtype` is the type that is computed in and that is sent to engines.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from agentrl.batch.packing import MicroBatch
from agentrl.errors import ModelError
from agentrl.train import process_group
from agentrl.train.packed import PackedModel, check_forward, check_options, choose_attention, decoder_layers
from agentrl.train.pretrained import local_folder

UNBOUNDED = 1 << 30
"""Positions of a model whose config names no limit."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)


class Policy:
    """One model on one rank. Make it by `load` or `random`; `close` gives back the process group."""

    def __init__(
        self,
        model: Any,
        *,
        device: str = "auto",
        threads: int | None = None,
        logprob_chunk_tokens: int = 1024,
        dtype: torch.dtype = torch.float32,
        tokenizer_folder: Path | None = None,
    ) -> None:
        """Takes the model over: it is moved, its weights are raised to float32, its layers are sharded.

        Raises ModelError, by name, for models whose logits are not head(hidden) or that can't run packed Rows.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = resolve_device(device)
        self.dtype = dtype
        self.tokenizer_folder = tokenizer_folder
        self.model = model
        check_options(model)
        model.to(device=self.device, dtype=torch.promote_types(dtype, torch.float32))
        choose_attention(model, self.device)
        self.packed = PackedModel(model, logprob_chunk_tokens)
        check_forward(self.packed, self.device)
        self.mesh, self._owns_group = process_group.acquire(self.device.type)
        self._shard()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        threads: int | None = None,
        logprob_chunk_tokens: int = 1024,
        dtype: torch.dtype = torch.float32,
    ) -> Policy:
        """The model in a Hugging Face folder, or of a Hugging Face id. Raises ModelError if it isn't there."""
        folder = local_folder(path)
        with _global_generator_kept(), _model_errors(f"no causal language model could be loaded from {folder}"):
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.promote_types(dtype, torch.float32), attn_implementation="sdpa"
            )
        return cls(
            model,
            device=device,
            threads=threads,
            logprob_chunk_tokens=logprob_chunk_tokens,
            dtype=dtype,
            tokenizer_folder=folder,
        )

    @classmethod
    def random(
        cls,
        config: Any,
        seed: int,
        *,
        device: str = "auto",
        threads: int | None = None,
        logprob_chunk_tokens: int = 1024,
        dtype: torch.dtype = torch.float32,
        tokenizer_folder: str | Path | None = None,
    ) -> Policy:
        """A new model of a transformers config; the same seed gives the same weights on every device."""
        with _global_generator_kept(), _model_errors("no causal language model could be made from the config"):
            # The library draws from the global generator: it gets our seed, and its state back afterwards.
            torch.default_generator.manual_seed(seed)
            model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.promote_types(dtype, torch.float32), attn_implementation="sdpa"
            )
        return cls(
            model,
            device=device,
            threads=threads,
            logprob_chunk_tokens=logprob_chunk_tokens,
            dtype=dtype,
            tokenizer_folder=None if tokenizer_folder is None else Path(tokenizer_folder),
        )

    def _shard(self) -> None:
        reduced = self.dtype if self.dtype.itemsize < 4 else None
        precision = MixedPrecisionPolicy(
            param_dtype=reduced,
            reduce_dtype=None if reduced is None else torch.float32,
            # Inputs stay as they are: a temperature in bfloat16 would be another temperature.
            cast_forward_inputs=False,
        )
        for layer in decoder_layers(self.model):
            fully_shard(layer, mesh=self.mesh, mp_policy=precision)
        fully_shard(self.packed, mesh=self.mesh, mp_policy=precision)

    @property
    def loss_dtype(self) -> torch.dtype:
        """What logprobs and losses are computed in: float32, or float64 for a float64 model."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model was made for, in ids."""
        return int(getattr(self.model.config, "max_position_embeddings", UNBOUNDED))

    def forward(self, micro_batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies (without gradient) of the selected ids, each [S]."""
        result: tuple[Tensor, Tensor] = self.packed(
            self.tensor(micro_batch.ids),
            self.tensor(micro_batch.position_ids),
            self.tensor(micro_batch.sources),
            self.tensor(micro_batch.targets),
            self.tensor(micro_batch.column("temperature")),
        )
        return result

    def tensor(self, values: np.ndarray[Any, Any]) -> Tensor:
        """A numpy array on the policy's device; floats in `loss_dtype`."""
        tensor = torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
        return tensor.to(self.loss_dtype) if tensor.is_floating_point() else tensor

    @torch.no_grad()
    def score(self, micro_batch: MicroBatch) -> Tensor:
        """Logprobs [S] without gradient."""
        logprobs, _ = self.forward(micro_batch)
        self._reshard()
        return logprobs

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int], selected: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The logprob of ids[i] given ids[:i], for each i >= 1 in `selected`."""
        if any(not 1 <= place < len(ids) for place in selected):
            raise ValueError(f"places must lie in [1, {len(ids)}), got {list(selected)}")
        places = torch.tensor(list(selected), dtype=torch.int64, device=self.device)
        sequence = torch.tensor(list(ids), dtype=torch.int64, device=self.device)
        temperatures = torch.full((len(selected),), temperature, dtype=self.loss_dtype, device=self.device)
        position_ids = torch.arange(len(ids), device=self.device)
        logprobs, _ = self.packed(sequence, position_ids, places - 1, sequence[places], temperatures)
        self._reshard()
        values: list[float] = logprobs.tolist()
        return values

    def _reshard(self) -> None:
        """After a forward without backward FSDP leaves gathered weights in place of the root's sharded ones."""
        self.packed.reshard()  # type: ignore[operator]

    def named_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The sharded parameters by their names in the Hugging Face model, tied ones once."""
        return dict(self.model.named_parameters())

    @property
    def tied_names(self) -> dict[str, str]:
        """Further names of parameters that `tensors` yields once: {"lm_head.weight": "model.embed_tokens.weight"}."""
        first = {id(parameter): name for name, parameter in self.model.named_parameters()}
        every = self.model.named_parameters(remove_duplicate=False)
        return {name: first[id(parameter)] for name, parameter in every if first[id(parameter)] != name}

    @torch.no_grad()
    def tensors(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of each parameter once, in the forward pass's type unless `dtype` says otherwise.

        One whole tensor exists at a time. It may share memory with the weights: copy what must outlive the next update.
        """
        for name, parameter in self.named_parameters().items():
            yield name, full_tensor(parameter.detach()).to(dtype or self.dtype)

    def weights_hash(self) -> str:
        """SHA-256 over names, types, shapes and bytes of the kept (not rounded) weights: equal weights, equal hash."""
        digest = hashlib.sha256()
        for name, tensor in self.tensors(self.loss_dtype):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write a Hugging Face folder: the kept weights as safetensors, the config, and a copy of the tokenizer."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: full_tensor(tensor.detach()).cpu() for name, tensor in self.model.state_dict().items()}
        self.model.save_pretrained(folder, state_dict=state)
        if self.tokenizer_folder is not None and self.tokenizer_folder.resolve() != folder.resolve():
            for name in TOKENIZER_FILES:
                if (self.tokenizer_folder / name).exists():
                    shutil.copyfile(self.tokenizer_folder / name, folder / name)

    def close(self) -> None:
        """Give back the process group. Calling it again does nothing."""
        if self._owns_group:
            self._owns_group = False
            process_group.release()

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def resolve_device(device: str) -> torch.device:
    """ "auto" is cuda where there is one. Raises ModelError for a cuda that isn't there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError("train.device=cuda, but torch sees no CUDA device here; use cpu or auto")
    return torch.device(device)


@contextmanager
def _global_generator_kept() -> Iterator[None]:
    """Torch's global CPU generator is afterwards as it was."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@contextmanager
def _model_errors(problem: str) -> Iterator[None]:
    """What transformers raises for models that it doesn't know or can't run, as ModelError."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{problem}: {error}") from error
