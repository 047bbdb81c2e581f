"""The gap between sampler and trainer by place in the context, and the warning where it rises (C08)."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from agentrl.train.report import mismatch_metrics
from agentrl.train.trend import MismatchTrend
from tests.train.builders import make_groups, make_policy, make_rows, make_trainer


def test_c08_the_gap_is_told_by_place_in_the_context() -> None:
    places = np.array([0, 255, 256, 1023, 20_000])
    gap = np.array([0.1, -0.3, 0.4, 0.0, 0.5])
    metrics = mismatch_metrics(np.full(5, -1.0), -1.0 + gap, places)
    ranges = {name: value for name, value in metrics.items() if "_to_" in name or "_over_" in name}
    assert ranges == pytest.approx({"mismatch_to_256": 0.2, "mismatch_to_1k": 0.2, "mismatch_over_16k": 0.5})


def warnings(gaps: list[float], name: str = "mismatch_to_1k") -> list[int]:
    """The steps at which a range with these gaps is warned of."""
    trend = MismatchTrend()
    return [step for step, gap in enumerate(gaps) if trend.add({name: gap})]


def test_c08_a_rising_gap_is_warned_of_and_a_flat_one_is_not() -> None:
    generator = np.random.default_rng(0)
    flat = list(1e-3 * generator.uniform(0.7, 1.3, 200))
    assert warnings(flat) == []
    assert warnings([1e-6 * 1.3**step for step in range(15)]) == []  # rounding, however it grows
    rising = [1e-3 * (1 + step / 4) for step in range(20)]
    steps = warnings(rising)
    assert steps and steps[0] <= 12
    assert warnings([1e-3] * 10 + [1.0] + [1e-3] * 10) == []  # one wild step is no trend
    assert len(warnings([1e-3 * 2 ** (step / 10) for step in range(60)])) >= 2  # and again where it goes on


def test_c08_longer_conversations_are_no_drift() -> None:
    """The mean over all ids rises tenfold, since more and more of them are far out; at each range it stays."""
    trend = MismatchTrend()
    for step in range(40):
        places = np.concatenate([np.full(100, 10), np.full(10 * step, 5000)])
        size = np.where(places > 4096, 1e-2, 1e-3)
        assert trend.add(mismatch_metrics(np.zeros(len(places)), size, places)) == []


def test_c08_the_trainer_warns_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rows = make_rows(make_groups(1))
    with make_policy() as policy, caplog.at_level(logging.WARNING, logger="agentrl"):
        trainer = make_trainer(policy)
        trainer.score(rows)
        for step in range(12):
            for row in rows:  # weights stay, and the engine drifts from step 6 on
                row.logprobs[:] = np.where(row.mask == 1, row.proximal - 0.01 * max(1, step - 4), np.nan)
            trainer.score(rows)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "mismatch_to_256 was 0.01 nats and is" in caplog.text
