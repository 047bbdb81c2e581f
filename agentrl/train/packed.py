"""One forward pass over packed Rows: from ids to the logprobs of selected next ids, without [tokens, vocab] logits.

Left out: fused kernels for the head. Chunks with recomputation bound the memory just as well and run anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl.errors import ModelError
from agentrl.train.attention import PACKED_ATTENTION, row_starts

HEAD_OPTIONS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier_scale",
    "final_logits_bias",
)
"""Keys of model configs that change logits after the head (Gemma 2, Cohere, Granite, Falcon-H1, ...)."""


class PackedModel(nn.Module):
    """A causal LM whose forward takes one packed micro-batch. Dropout is off: it would be noise in the ratio."""

    def __init__(self, model: Any, chunk_tokens: int) -> None:
        super().__init__()
        self.model = model.eval()
        self.chunk_tokens = chunk_tokens

    def forward(
        self,
        ids: Tensor,
        position_ids: Tensor,
        sources: Tensor,
        targets: Tensor,
        temperature: Tensor,
        plain: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Logprobs [S] and entropies [S] (no gradient, nats), in float32 or higher.

        `ids`, `position_ids`: [T]; `sources`, `targets`, `temperature`: [S]: id targets[s] is predicted at place
        sources[s] from logits / temperature[s]. With `plain`, the model's own forward pass over one Row is used, to
        compare with: whatever it does to its logits is in it.
        """
        if plain:
            logits = self.model(input_ids=ids[None], position_ids=position_ids[None], use_cache=False).logits[0]
            return chosen_logprobs(logits[sources], targets, temperature)
        hidden = self.hidden(ids, position_ids)
        selected = hidden[sources]
        if len(sources) == 0:
            # Still a function of the weights, so that backward runs FSDP's hooks.
            nothing = hidden.sum() * 0.0
            return nothing.expand(0), nothing.detach().expand(0)
        chunks = [torch.split(c, self.chunk_tokens) for c in (selected, targets, temperature)]
        parts = [self._chunk(*chunk, recompute=len(chunks[0]) > 1) for chunk in zip(*chunks, strict=True)]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    def hidden(self, ids: Tensor, position_ids: Tensor) -> Tensor:
        """The last hidden states [T, width] of packed Rows."""
        starts = row_starts(position_ids)
        longest = int((starts[1:] - starts[:-1]).max())
        output = self.model.base_model(
            input_ids=ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            cu_seq_lens_q=starts,
            cu_seq_lens_k=starts,
            max_length_q=longest,
            max_length_k=longest,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _chunk(self, hidden: Tensor, targets: Tensor, temperature: Tensor, *, recompute: bool) -> tuple[Tensor, Tensor]:
        """One chunk through the head. Several chunks keep no logits for backward but compute them again."""
        if recompute and torch.is_grad_enabled():
            return checkpoint(  # type: ignore[no-any-return]
                self._head, hidden, targets, temperature, use_reentrant=False, preserve_rng_state=False
            )
        return self._head(hidden, targets, temperature)

    def _head(self, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model.get_output_embeddings()(hidden)
        return chosen_logprobs(logits, targets, temperature)


def chosen_logprobs(logits: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """log_softmax(logits / temperature) at `targets`, and the entropy of that distribution, both [S].

    The temperature divides logits, not logprobs (C01). `logits` is [S, vocab]; half types are raised to float32 first.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = torch.log_softmax(logits / temperature.to(logits.dtype)[:, None], dim=-1)
    with torch.no_grad():
        # 0 * -inf (a masked-out id of the vocabulary) counts as 0.
        entropy = torch.special.entr(logprobs.exp()).sum(dim=-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def choose_attention(model: Any, device: torch.device) -> None:
    """On a CPU, attention without a dense mask, where every layer is plain causal attention."""
    layer_types = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    is_plain = layer_types == {"full_attention"} and not getattr(model.config, "sliding_window", None)
    if device.type == "cpu" and is_plain:
        model.set_attn_implementation(PACKED_ATTENTION)


def decoder_layers(model: Any) -> nn.ModuleList:
    """The list of decoder layers, each of which becomes one FSDP unit."""
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
            return module
    raise ModelError(f"{type(model).__name__} has no list of {model.config.num_hidden_layers} decoder layers")


def recompute_layers(model: Any) -> None:
    """Have each decoder layer keep only its input, and compute the rest again in the backward pass.

    The layer's forward is replaced, not the layer: FSDP then still gathers its weights once per pass, and parameters
    keep their names.
    """
    for layer in decoder_layers(model):
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return call


def check_options(model: Any) -> None:
    """Refuse, by name, a model that does more than head(hidden), as its config says."""
    for name in HEAD_OPTIONS:
        value = getattr(model.config, name, None)
        if value is not None and value != 1 and value is not False:
            raise ModelError(
                f"{type(model).__name__} has {name}={value}: its logits are not simply head(hidden), "
                "so its logprobs can't be computed in chunks; use another model"
            )


@torch.no_grad()
def check_forward(packed: PackedModel, device: torch.device) -> None:
    """Measure on a few ids that logits are head(hidden), and that packed Rows don't see each other.

    Catches what no config key tells. Runs on the kept weights, so in float32 or higher. Raises ModelError.
    """
    model = packed.model
    name = type(model).__name__
    vocab_size = model.get_output_embeddings().weight.shape[0]
    ids = (torch.arange(12, device=device) * 7 + 1) % vocab_size
    position_ids = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], device=device)
    logits = model(input_ids=ids[None, :5], use_cache=False).logits[0]
    if logits.shape[-1] != vocab_size:
        raise ModelError(f"{name} returns {logits.shape[-1]} logits from a head of {vocab_size} rows")
    base, head = model.base_model, model.get_output_embeddings()
    alone = [base(input_ids=part[None], use_cache=False).last_hidden_state[0] for part in (ids[:5], ids[5:])]
    together = packed.hidden(ids, position_ids)
    if _differ(head(alone[0]), logits):
        raise ModelError(f"{name} computes its logits by more than head(hidden): it can't be trained in chunks")
    if _differ(torch.cat(alone), together):
        raise ModelError(f"{name} lets packed Rows see each other (it ignores position ids)")


def _differ(left: Tensor, right: Tensor) -> bool:
    """By more than rounding, which is about 1e-6 of the largest value in float32."""
    return bool((left - right).abs().max() > 1e-4 * right.abs().max())
