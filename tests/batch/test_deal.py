"""Micro-batches are dealt out to ranks so that each computes as often as the others, and nothing twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch.packing import deal, padding


@given(num_micro_batches=st.integers(0, 20), num_ranks=st.integers(1, 8))
def test_every_micro_batch_goes_to_one_rank_and_all_shares_are_equally_long(
    num_micro_batches: int, num_ranks: int
) -> None:
    micro_batches = [padding() for _ in range(num_micro_batches)]
    shares = deal(micro_batches, num_ranks)
    assert len(shares) == num_ranks and len({len(share) for share in shares}) == 1
    assert len(shares[0]) == -(-num_micro_batches // num_ranks), "no more rounds than needed"
    for number, micro_batch in enumerate(micro_batches):
        assert shares[number % num_ranks][number // num_ranks] is micro_batch
    dealt = {id(micro_batch) for micro_batch in micro_batches}
    added = [micro_batch for share in shares for micro_batch in share if id(micro_batch) not in dealt]
    assert len(added) == num_ranks * len(shares[0]) - num_micro_batches
    for micro_batch in added:
        assert len(micro_batch.sources) == 1 and not micro_batch.scale.any()
        assert not micro_batch.column("weights").any() and np.isfinite(micro_batch.column("logprobs")).all()
