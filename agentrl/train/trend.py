"""Does the gap between sampler and trainer grow? It should not: with a sound engine it depends on neither time nor
learning, so a gap that rises comes from the engine: its cache, its long contexts, or weights that don't arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

import numpy as np

from agentrl.batch.rows import Floats, Ints

RANGES = {
    "mismatch_to_256": (0, 256),
    "mismatch_to_1k": (256, 1024),
    "mismatch_to_4k": (1024, 4096),
    "mismatch_to_16k": (4096, 16384),
    "mismatch_over_16k": (16384, np.inf),
}
"""[start, end) of places in the context, by which the gap is told apart: longer conversations are no drift."""
NUM_STEPS = 5
"""Steps whose median counts, early and late."""
FACTOR = 2.0
FLOOR = 1e-4
"""Nats; a gap below it is rounding."""


def mismatch_by_place(places: Ints, size: Floats) -> dict[str, float]:
    """Mean of `size` [S] (nats) over the ids at each range of `places` [S] in their Rows; a range without ids is left
    out."""
    parts = {name: size[(places >= start) & (places < end)] for name, (start, end) in RANGES.items()}
    return {name: float(part.mean()) for name, part in parts.items() if len(part)}


class MismatchTrend:
    """Watches the mean gap at each range of places from step to step.

    It rises where the median of the last five steps is above 1e-4 nats and twice that of the first five. After a
    warning the watch of that range begins anew, so that the next one says that it has doubled once more.
    """

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, means: Mapping[str, float]) -> list[str]:
        """What to warn of after a step whose metrics these are, or its `mismatch_by_place`."""
        names = [name for name in RANGES if name in means]
        return [warning for name in names if (warning := self._add(name, means[name])) is not None]

    def _add(self, name: str, mean: float) -> str | None:
        seen = self._seen[name]
        seen.append(mean)
        if len(seen) < 2 * NUM_STEPS:
            return None
        first, last = median(seen[:NUM_STEPS]), median(seen[-NUM_STEPS:])
        if not last > max(FLOOR, FACTOR * first):
            return None
        del seen[:-NUM_STEPS]
        return (
            f"the gap between the engine's logprobs and the trainer's grows: {name} was {first:.2g} nats and is "
            f"{last:.2g}. Learning doesn't do that: look at the engine (its prefix cache, long contexts), or compare "
            "with engine=embedded"
        )
