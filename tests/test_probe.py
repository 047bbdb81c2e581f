"""The reply by which old weights are told from new."""

from __future__ import annotations

from typing import Any

from agentrl.probe import MAX_PROBE_TOKENS, Probe
from agentrl.train.policy import Policy
from tests.batch.builders import make_group, one_turn


class Flat(Policy):
    """Finds every id as likely as any other."""

    def __init__(self) -> None:
        """Loads nothing."""

    def logprobs(self, ids: Any, places: Any, **options: Any) -> list[float]:
        return [0.0 for _ in places]


def probe(*lengths: int) -> Probe | None:
    samples = [one_turn(f"t{number}", 1.0, num_sampled=length) for number, length in enumerate(lengths)]
    return Probe.of(Flat(), [make_group(samples)])


def test_a_reply_that_fills_the_window_leaves_room_for_the_id_that_an_engine_samples_beside() -> None:
    """vLLM refuses to score as many ids as its window holds."""
    for length in (5, MAX_PROBE_TOKENS, MAX_PROBE_TOKENS + 5):
        found = probe(1, length)
        assert found is not None and len(found.previous) == min(length - 1, MAX_PROBE_TOKENS)
        whole = one_turn("t1", 1.0, num_sampled=length).trajectory
        ids = whole.context(0) + whole.turns[0].sampled_ids
        assert found.prompt_ids + found.forced_ids == ids[: len(found.prompt_ids) + len(found.forced_ids)]


def test_replies_of_one_id_are_better_than_none() -> None:
    found = probe(1, 1)
    assert found is not None and len(found.forced_ids) == 1
    assert probe() is None
