"""What a step's line says when the step wasn't a normal one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentrl.cli.display import why_not_normal

NORMAL: dict[str, Any] = {
    "num_updates": 1, "num_skipped_updates": 0, "skipped_updates": {}, "num_groups": 4, "zero_variance_share": 0.0,
    "all_zero_share": 0.0, "all_one_share": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"zero_variance_share": 0.5}, ""),
        (
            {"num_updates": 0, "zero_variance_share": 1.0, "all_zero_share": 0.75},
            "  NO SIGNAL: rewards are equal within 100% of the groups (75% all 0, 0% all 1)",
        ),
        (
            {"num_updates": 0, "num_groups": 0, "zero_variance_share": math.nan},
            "  NO SIGNAL: no group has two measured samples",
        ),
        (
            {"num_updates": 0, "num_skipped_updates": 1, "skipped_updates": {0: "gradient norm is nan"}},
            "  SKIPPED 1 updates: gradient norm is nan",
        ),
    ],
)
def test_d04_d11_a_step_that_is_not_normal_does_not_look_normal(changes: dict[str, Any], says: str) -> None:
    assert why_not_normal(NORMAL | changes) == says
