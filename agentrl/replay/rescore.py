"""`--rescore`: what other weights say of the ids that were sampled, beside what was recorded then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.batch.packing import engine_ids, pack
from agentrl.batch.rows import Row, build_rows
from agentrl.config import TrainConfig
from agentrl.errors import ReplayError
from agentrl.train.policy import Policy
from agentrl.types import Sample
from agentrl.wiring import open_policy


@dataclass(kw_only=True, slots=True, frozen=True)
class Score:
    """One sampled id."""

    turn: int
    place: int
    """Among the turn's sampled ids."""
    id: int
    version: int
    recorded: float
    now: float

    @property
    def difference(self) -> float:
        """In nats."""
        return self.now - self.recorded

    @property
    def ratio(self) -> float:
        """Of the probability now to the recorded one."""
        return math.exp(min(self.difference, 700.0))


def rescore(sample: Sample, config: TrainConfig, model: Path) -> list[Score]:
    """All ids that an engine sampled, those that differ most first; at the temperature they were sampled with.

    Where top-p or top-k cut the distribution, the recorded logprob is of what was left, this one of the whole. Raises
    ReplayError where there are no such ids, or the model hasn't got them; ModelError for a folder that doesn't load.
    """
    rows = build_rows(sample)
    if not any(engine_ids(row).any() for row in rows):
        raise ReplayError(f"trajectory {sample.trajectory.id} has no ids that an engine sampled: nothing to score")
    with open_policy(config.model_copy(update={"ranks": 1, "devices": None}), model) as policy:
        _check_vocabulary(rows, policy, model)
        _score(rows, policy, config)
    return sorted(_scores(rows), key=lambda score: -abs(score.difference))


def _check_vocabulary(rows: Sequence[Row], policy: Policy, model: Path) -> None:
    num_known = policy.model.get_input_embeddings().num_embeddings
    largest = max(int(row.ids.max()) for row in rows)
    if largest >= num_known:
        raise ReplayError(f"{model} knows {num_known} ids, but {largest} was recorded: it has another tokenizer")


def _score(rows: Sequence[Row], policy: Policy, config: TrainConfig) -> None:
    """Fill `proximal`, as the trainer does before a step."""
    sampled = [row for row in rows if engine_ids(row).any()]
    for micro_batch in pack(sampled, config.micro_batch_tokens, engine_ids, lambda row: 0.0):
        values = policy.score(micro_batch).double().cpu().numpy()
        for number, row in enumerate(micro_batch.rows):
            here = micro_batch.row_number == number
            row.proximal[micro_batch.row_place[here]] = values[here]


def _scores(rows: Sequence[Row]) -> Iterator[Score]:
    # Each sampled id counts in the first Row that holds it, so the Rows in turn order give a turn's ids in order.
    places: Counter[int] = Counter()
    for row in rows:
        for i in row.mask.nonzero()[0].tolist():
            turn = int(row.turn_index[i])
            place, places[turn] = places[turn], places[turn] + 1
            if not math.isnan(row.logprobs[i]):
                yield Score(
                    turn=turn,
                    place=place,
                    id=int(row.ids[i]),
                    version=int(row.versions[i]),
                    recorded=float(row.logprobs[i]),
                    now=float(row.proximal[i]),
                )
