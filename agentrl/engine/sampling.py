"""The sampling step: logits of many rows, each with its own parameters and its own noise → ids and logprobs.

A row's noise is one uniform number per token, from a generator that the row owns: nothing here reads or advances
torch's global generator, and a row's tokens don't depend on its neighbours. The token is the inverse of the
cumulative distribution at that number, taken in float64 so that it stays exact for large vocabularies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_BLOCK = 64
"""Uniform numbers drawn at once: a call per token would cost more than the numbers."""


class Noise:
    """An endless stream of uniform numbers in [0, 1), fixed by its seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._block: list[float] = []

    def next(self) -> float:
        """The next number."""
        if not self._block:
            block = torch.rand(_BLOCK, generator=self._generator, dtype=torch.float64)
            self._block = block.tolist()[::-1]
        return self._block.pop()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """How one row's next token is chosen."""

    temperature: float = 0.0
    """0: the most likely token."""
    top_k: int = 0
    """0: no limit."""
    top_p: float = 1.0
    uniform: float = 0.0
    forced: int | None = None
    """This token, whatever its probability."""


GREEDY = Row()


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row: logits float32 [B, V] → (ids int64 [B], logprobs float32 [B]).

    A logprob is that of the distribution which was sampled from: log softmax of logits / temperature after top-k and
    top-p. A greedy row reports the plain log softmax. Rows with NaN logits get some valid id and a NaN logprob.
    """
    logprobs = torch.log_softmax(process(logits, rows), dim=-1)
    tokens = _draw(logprobs, rows) if any(row.temperature > 0 for row in rows) else logprobs.argmax(-1)
    if any(row.temperature == 0 for row in rows):
        greedy = torch.tensor([row.temperature == 0 for row in rows], device=logits.device)
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    for index, row in enumerate(rows):
        if row.forced is not None:
            tokens[index] = row.forced
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def process(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The scores [B, V] whose softmax is sampled from: -inf where top-k or top-p cut a token off."""
    sampled = [row.temperature > 0 for row in rows]
    temperature = [row.temperature if row.temperature > 0 else 1.0 for row in rows]
    scores = logits
    if any(value != 1.0 for value in temperature):
        scores = logits / torch.tensor(temperature, device=logits.device)[:, None]
    limited = [i for i, row in enumerate(rows) if sampled[i] and (row.top_k or row.top_p < 1)]
    if not limited:
        return scores
    scores = scores.clone() if scores is logits else scores
    scores[limited] = _truncate(scores[limited], [rows[i] for i in limited])
    return scores


def _truncate(scores: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Keep the top_k most likely tokens, then the fewest whose probabilities reach top_p; at least one."""
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    vocab = scores.shape[1]
    top_k = torch.tensor([row.top_k or vocab for row in rows], device=scores.device)
    top_p = torch.tensor([row.top_p for row in rows], device=scores.device)
    ordered = ordered.masked_fill(torch.arange(vocab, device=scores.device) >= top_k[:, None], -torch.inf)
    before = torch.softmax(ordered, dim=-1).cumsum(-1).roll(1, -1)
    before[:, 0] = 0.0
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (top_p < 1)[:, None], -torch.inf)
    return torch.empty_like(scores).scatter_(1, order, ordered)


def _draw(logprobs: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Inverse of the cumulative distribution; a token of probability 0 can't come out."""
    cumulative = logprobs.double().exp().cumsum(-1)
    total = cumulative[:, -1:]
    uniform = torch.tensor([[row.uniform] for row in rows], dtype=torch.float64, device=logprobs.device)
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform * total, below_total)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=logprobs.shape[1] - 1)
