"""Paged attention for the embedded engine's continuous batching, under a name of its own.

transformers serves `sdpa` with one dense mask [all queries x all keys of all requests], whose cost grows with the
square of the concurrency, and which it fills at every step. Here each request attends to its own keys only, no mask is
built, and "sdpa" stays stock for the trainer in the same process.

Shape letters: B rows of a step, Q queries, K keys, H heads, N key-value heads, G = H / N, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.modeling_utils import AttentionInterface

PAGED_ATTENTION = "agentrl_paged"
"""The name under which a model selects this attention."""


@dataclass(kw_only=True, slots=True)
class StepPlan:
    """How the rows of one step are split; computed once per step and used by every layer."""

    decode_queries: torch.Tensor
    """[B1] place of the only query of each decoding row."""
    decode_keys: torch.Tensor
    """[B1, K] places of each decoding row's keys, padded with place 0."""
    decode_mask: torch.Tensor
    """[B1, 1, 1, K] False where padded."""
    prefill: list[tuple[int, int, int, int]]
    """(first query, end, first key, end) of each row with several queries; its last query sees its last key."""


def plan_step(query_starts: list[int], key_starts: list[int], device: torch.device) -> StepPlan:
    """Split rows, given as cumulative starts (length B + 1), into decoding ones and prefilling ones."""
    rows = list(zip(query_starts, query_starts[1:], key_starts, key_starts[1:], strict=False))
    decode = [row for row in rows if row[1] - row[0] == 1]
    starts = torch.tensor([row[2] for row in decode], device=device, dtype=torch.long)
    lengths = torch.tensor([row[3] - row[2] for row in decode], device=device, dtype=torch.long)
    places = torch.arange(max((row[3] - row[2] for row in decode), default=0), device=device)
    mask = places[None] < lengths[:, None]
    return StepPlan(
        decode_queries=torch.tensor([row[0] for row in decode], device=device, dtype=torch.long),
        decode_keys=torch.where(mask, starts[:, None] + places[None], 0),
        decode_mask=mask[:, None, None],
        prefill=[row for row in rows if row[1] - row[0] > 1],
    )


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cache: PagedAttentionCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer over one step: query [1, H, Q, D], key and value [1, N, Q, D] → [1, Q, H, D].

    Raises ValueError outside of continuous batching: without its cache this would be no causal attention.
    """
    if not isinstance(cache, PagedAttentionCache):
        raise ValueError(f"{PAGED_ATTENTION} serves continuous batching only; use 'sdpa' for a plain forward pass")
    query_starts = kwargs["cu_seq_lens_q"]
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    plan = getattr(query_starts, "_agentrl_plan", None)
    if plan is None:  # the tensor lives exactly as long as the step, and so does what hangs on it
        plan = plan_step(query_starts.tolist(), kwargs["cu_seq_lens_k"].tolist(), query.device)
        query_starts._agentrl_plan = plan
    out = torch.empty(query.shape[2], query.shape[1], query.shape[3], dtype=query.dtype, device=query.device)
    _decode(plan, query[0], key[0], value[0], scaling, out)
    for span in plan.prefill:
        _prefill(span, query[0], key[0], value[0], scaling, out)
    return out[None], None


def _decode(
    plan: StepPlan,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    out: torch.Tensor,
) -> None:
    """All decoding rows as one padded batch, with the G query heads of a key head as its query axis."""
    num_rows = len(plan.decode_queries)
    if not num_rows:
        return
    num_key_heads, width = key.shape[0], key.shape[2]
    places = plan.decode_keys.flatten()  # index_select is twice as fast as indexing with a matrix
    keys, values = (
        states.transpose(0, 1).index_select(0, places).view(num_rows, -1, num_key_heads, width).transpose(1, 2)
        for states in (key, value)
    )
    queries = query[:, plan.decode_queries].transpose(0, 1).reshape(num_rows, num_key_heads, -1, width)
    mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=plan.decode_mask, scale=scaling)
    out[plan.decode_queries] = mixed.reshape(num_rows, -1, width)


def _prefill(
    span: tuple[int, int, int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    out: torch.Tensor,
) -> None:
    """One prefilling row; a chunk that is not the first sees all earlier keys, so its causal mask is shifted."""
    first, end, key_first, key_end = span
    num_queries, num_keys = end - first, key_end - key_first
    mask = None
    if num_queries != num_keys:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
    groups = query.shape[0] // key.shape[0]
    keys, values = (s[:, key_first:key_end].repeat_interleave(groups, 0)[None] for s in (key, value))
    mixed = functional.scaled_dot_product_attention(
        query[None, :, first:end], keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling
    )
    out[first:end] = mixed[0].transpose(0, 1)


def register() -> None:
    """Make the name known to transformers; calling it again changes nothing."""
    AttentionInterface.register(PAGED_ATTENTION, paged_attention)
