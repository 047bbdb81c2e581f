"""Attention over packed Rows for CPUs, under a name of its own.

transformers' `sdpa` turns packed Rows into one dense mask [T, T] and pays for all of it; here each Row is one entry of
a padded batch with causal attention, which needs no mask. On GPUs flash attention does the same with the same keyword
(`cu_seq_lens_q`), so this is not used there.

Shape letters: R Rows, L longest Row, T ids, H heads, N key-value heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface

PACKED_ATTENTION = "agentrl_packed"
"""The name under which a model selects this attention."""


def row_starts(position_ids: Tensor) -> Tensor:
    """[R + 1] where each Row of packed `position_ids` [T] begins, and T."""
    starts = (position_ids == 0).nonzero()[:, 0]
    return torch.cat([starts, starts.new_tensor([len(position_ids)])])


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer's attention: query [1, H, T, D], key and value [1, N, T, D] → [1, T, H, D].

    Without `cu_seq_lens_q` [R + 1] all ids are one Row. Raises ValueError for a batch of several sequences.
    """
    if query.shape[0] != 1:
        raise ValueError(f"{PACKED_ATTENTION} takes packed Rows, not {query.shape[0]} sequences; use 'sdpa' for those")
    starts = [0, query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.tolist()
    places, inverse = padded_places(starts, query.device)

    def padded(states: Tensor) -> Tensor:
        """[1, heads, T, D] → [R, heads, L, D]"""
        return states[0].transpose(0, 1)[places].transpose(1, 2)

    # Padding lies behind each Row's ids, so causal attention never sees it.
    mixed = functional.scaled_dot_product_attention(
        padded(query),
        padded(key),
        padded(value),
        is_causal=True,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed.transpose(1, 2).flatten(0, 1)[inverse][None], None


def padded_places(starts: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """([R, L] the place in [T] of each entry of the padded batch, [T] the entry of each place)."""
    first = torch.tensor(starts[:-1], device=device)
    lengths = torch.tensor(starts[1:], device=device) - first
    offsets = torch.arange(int(lengths.max()), device=device)
    is_real = offsets < lengths[:, None]
    return torch.where(is_real, first[:, None] + offsets, 0), is_real.flatten().nonzero()[:, 0]


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
