"""The policy: a causal LM under FSDP2 that answers with logprobs, and whose weights can be read, hashed and saved.

Weights are kept in float32 (float64 if asked) whatever the type of the forward pass, so that small updates are not
rounded away; `dtype` is the type that is computed in and that is sent to engines.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from agentrl.batch.packing import MicroBatch
from agentrl.errors import ModelError
from agentrl.train import process_group
from agentrl.train.packed import (
    PackedModel,
    check_forward,
    check_options,
    choose_attention,
    decoder_layers,
    recompute_layers,
)
from agentrl.train.pretrained import local_folder
from agentrl.train.ranks import Ranks

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


class PolicyOptions(TypedDict, total=False):
    """The keyword arguments that `Policy.load` and `Policy.random` hand on to every rank."""

    device: str | Sequence[str]
    threads: int | None
    logprob_chunk_tokens: int
    dtype: torch.dtype
    activation_checkpointing: bool
    tokenizer_folder: Path | None
    ranks: Ranks


class Policy:
    """One model, whole or shared by several ranks. Make it by `load` or `random`; `close` ends the other ranks.

    With several ranks this object is rank 0's, and its methods have the other ranks take part.
    """

    name_on_ranks = "policy"

    def __init__(
        self,
        model: Any,
        *,
        device: str | Sequence[str] = "auto",
        threads: int | None = None,
        logprob_chunk_tokens: int = 1024,
        dtype: torch.dtype = torch.float32,
        activation_checkpointing: bool = False,
        tokenizer_folder: Path | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Takes the model over: it is moved, its weights are raised to float32, its layers are sharded.

        `device`: of this process, or one per rank. `threads`: torch's on each rank. Raises ModelError, by name, for
        models whose logits are not head(hidden) or that can't run packed Rows; TrainingError if another rank fails.
        """
        self.ranks = ranks or Ranks()
        self.device = resolve_device(device if isinstance(device, str) else device[self.ranks.rank])
        _use_device(self.device, threads, self.ranks.size)
        self.dtype = dtype
        self._tokenizer_files = _tokenizer_files(tokenizer_folder)
        self.model = model
        check_options(model)
        model.to(device=self.device, dtype=torch.promote_types(dtype, torch.float32))
        choose_attention(model, self.device)
        self.packed = PackedModel(model, logprob_chunk_tokens)
        check_forward(self.packed, self.device)
        if activation_checkpointing:
            recompute_layers(model)
        self.ranks.meet(self.device.type)
        self.mesh, self._owns_group = process_group.acquire(
            self.device.type, self.ranks.rank, self.ranks.size, self.ranks.meeting_file
        )
        self._shard()

    @classmethod
    def load(cls, path: str | Path, **options: Unpack[PolicyOptions]) -> Policy:
        """The model in a Hugging Face folder, or of a Hugging Face id. Raises ModelError if it isn't there.

        Options: those of the constructor. Where `device` names several, their ranks are started.
        """
        folder = local_folder(path)
        dtype = _kept(options.get("dtype", torch.float32))
        with _seated("load", (folder,), options) as ranks:
            with _global_generator_kept(), _model_errors(f"no causal language model could be loaded from {folder}"):
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, dtype=dtype, attn_implementation="sdpa"
                )
            return cls(model, **(options | {"tokenizer_folder": folder, "ranks": ranks}))

    @classmethod
    def random(cls, config: Any, seed: int, **options: Unpack[PolicyOptions]) -> Policy:
        """A new model of a transformers config; the same seed gives the same weights on every device and rank."""
        dtype = _kept(options.get("dtype", torch.float32))
        with _seated("random", (config, seed), options) as ranks:
            with _global_generator_kept(), _model_errors("no causal language model could be made from the config"):
                # The library draws from the global generator: it gets our seed, and its state back afterwards.
                torch.default_generator.manual_seed(seed)
                model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    config, dtype=dtype, attn_implementation="sdpa"
                )
            return cls(model, **(options | {"ranks": ranks}))

    def _shard(self) -> None:
        reduced = self.dtype if self.dtype.itemsize < 4 else None
        precision = MixedPrecisionPolicy(
            param_dtype=reduced,
            reduce_dtype=None if reduced is None else torch.float32,
            # Inputs stay as they are: a temperature in bfloat16 would be another temperature.
            cast_forward_inputs=False,
        )
        for module in (*decoder_layers(self.model), self.packed):
            unit: Any = fully_shard(module, mesh=self.mesh, mp_policy=precision)
            # Gradients are summed: the loss is divided by the counts of all ranks' micro-batches already (G1).
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    @property
    def loss_dtype(self) -> torch.dtype:
        """What logprobs and losses are computed in: float32, or float64 for a float64 model."""
        return _kept(self.dtype)

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
        """Logprobs [S] without gradient. On each rank of its own micro-batch: see `Trainer.score`."""
        logprobs, _ = self.forward(micro_batch)
        self._reshard()
        return logprobs

    def logprobs(self, ids: Sequence[int], selected: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The logprob of ids[i] given ids[:i], for each i >= 1 in `selected`."""
        if any(not 1 <= place < len(ids) for place in selected):
            raise ValueError(f"places must lie in [1, {len(ids)}), got {list(selected)}")
        return self.ranks.run(self._logprobs, list(ids), list(selected), temperature, False)

    def plain_logprobs(self, ids: Sequence[int]) -> list[float]:
        """As `logprobs` of ids[1:], by log_softmax of the model's own forward pass: all logits exist at once."""
        return self.ranks.run(self._logprobs, list(ids), list(range(1, len(ids))), 1.0, True)

    @torch.no_grad()
    def _logprobs(self, ids: list[int], selected: list[int], temperature: float, plain: bool) -> list[float]:
        places = torch.tensor(selected, dtype=torch.int64, device=self.device)
        sequence = torch.tensor(ids, dtype=torch.int64, device=self.device)
        temperatures = torch.full((len(selected),), temperature, dtype=self.loss_dtype, device=self.device)
        position_ids = torch.arange(len(ids), device=self.device)
        logprobs, _ = self.packed(sequence, position_ids, places - 1, sequence[places], temperatures, plain=plain)
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
        for name in self.named_parameters():
            yield name, self._whole(name).to(dtype or self.dtype)

    def _whole(self, name: str) -> Tensor:
        return self.ranks.run(self._gather, name)

    @torch.no_grad()
    def _gather(self, name: str) -> Tensor:
        parameter = self.model.get_parameter(name)
        if isinstance(parameter, DTensor) and parameter.device_mesh.size() == 1:
            return parameter.to_local().detach()  # a third of the time, and nothing to gather
        return full_tensor(parameter.detach())

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
        state = {
            name: (self._whole(name) if isinstance(tensor, DTensor) else tensor.detach()).cpu()
            for name, tensor in self.model.state_dict().items()
        }
        self.model.save_pretrained(folder, state_dict=state)
        for name, content in self._tokenizer_files.items():
            (folder / name).write_bytes(content)

    def close(self) -> None:
        """End the other ranks and give back the process group. Calling it again does nothing."""
        self.ranks.dismiss()
        if self._owns_group:
            self._owns_group = False
            process_group.release()
        self.ranks.close()

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _tokenizer_files(folder: Path | None) -> dict[str, bytes]:
    """Held like the weights: the folder may be an old checkpoint, which is gone by the time of a save."""
    if folder is None:
        return {}
    return {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).exists()}


def _kept(dtype: torch.dtype) -> torch.dtype:
    """The type in which the weights of a model that computes in `dtype` are kept."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def _seated(how: str, arguments: tuple[Any, ...], options: PolicyOptions) -> Iterator[Ranks]:
    """The ranks of a policy that is made in this block; the others make theirs meanwhile, and end if it raises."""
    ranks, device = options.get("ranks"), options.get("device", "auto")
    if ranks is None:
        ranks = Ranks.start(how, arguments, dict(options), [device] if isinstance(device, str) else device)
    with ranks.closed_on_error():
        yield ranks


def _use_device(device: torch.device, threads: int | None, num_ranks: int) -> None:
    """Torch's threads and current GPU. Ranks on one CPU share its cores out: all of them on all cores are slower."""
    if threads is None and num_ranks > 1 and device.type == "cpu":
        threads = max(1, (os.cpu_count() or 1) // num_ranks)
    if threads is not None:
        torch.set_num_threads(threads)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


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
