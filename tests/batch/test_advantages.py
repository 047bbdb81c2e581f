"""Advantages per trajectory, and every reason for having none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentrl.batch.advantages import EPSILON, assign_advantages
from agentrl.batch.packing import make_batches
from agentrl.batch.rows import Row, build_rows
from agentrl.errors import RowError
from agentrl.types import Group, StopReason

from .builders import branches, make_group, make_sample, make_turn, one_turn


def rows_of(*groups: Group) -> list[Row]:
    return [row for group in groups for sample in group.samples for row in build_rows(sample)]


def test_population_deviation() -> None:
    group = make_group([one_turn("a", 1.0), one_turn("b", 0.0), one_turn("c", 0.0), one_turn("d", 0.0)])
    rows = rows_of(group)
    report = assign_advantages([group], rows)
    std = math.sqrt(3) / 4
    assert report.advantages == pytest.approx(
        {"a": 0.75 / (std + EPSILON), **dict.fromkeys("bcd", -0.25 / (std + EPSILON))}
    )
    assert rows[0].advantages.tolist() == [0, 0, report.advantages["a"], report.advantages["a"]]
    assert report.metrics()["reward_mean"] == 0.25
    assert report.reward_std == pytest.approx(std)
    assert (report.reward_min, report.reward_max, report.num_trajectories) == (0.0, 1.0, 4)


def test_without_deviation() -> None:
    group = make_group([one_turn("a", 1.0), one_turn("b", 0.0)])
    assert assign_advantages([group], rows_of(group), normalize_std=False).advantages == {"a": 0.5, "b": -0.5}


def test_r2_unmeasured_samples_are_excluded_and_counted() -> None:
    fault = make_sample([make_turn(0, None, 0, [1], [10])], id="d", stop_reason=StopReason.ENGINE_ERROR)
    group = make_group([one_turn("a", 1.0), one_turn("b", 0.0), one_turn("c", None), fault])
    rows = rows_of(group)
    report = assign_advantages([group], rows, normalize_std=False)
    assert report.advantages == {"a": 0.5, "b": -0.5}
    assert report.num_unmeasured == 2
    assert [run.reason for row in rows for run in row.runs] == ["unmeasured: the grader died", "ending=engine_error"]
    assert [row.live for row in rows] == [True, True, False, False]


@pytest.mark.parametrize("rewards", [[1.0], [1.0, None], [None, None], []])
def test_d02_fewer_than_two_measured_samples_drop_the_group(rewards: list[float | None]) -> None:
    group = make_group([one_turn(str(i), reward) for i, reward in enumerate(rewards)])
    rows = rows_of(group)
    report = assign_advantages([group], rows)
    assert report.num_dropped_groups == 1
    assert report.group_reasons == {"g": "too_few_measured"}
    for row in rows:
        assert row.advantages.tolist() == [0, 0, 0, 0]
        assert row.weights.tolist() == [0, 0, 0, 0]
        assert row.runs and row.runs[0].reason.split(":")[0] in ("too_few_measured", "unmeasured")


@pytest.mark.parametrize("equal", [[0.3, 0.1 + 0.2], [0.0, 0.0], [1e9, 1e9]])
def test_d07_dead_groups_have_weight_0_and_dilute_nothing(equal: list[float]) -> None:
    """Per group, not per batch: three dead groups beside a live one leave its denominator alone."""
    live = make_group([one_turn("a", 1.0, group="live"), one_turn("b", 0.0, group="live")], "live")
    dead = [
        make_group([one_turn(f"{g}{i}", reward, group=f"g{g}") for i, reward in enumerate(equal)], f"g{g}")
        for g in range(3)
    ]
    rows = rows_of(live, *dead)
    report = assign_advantages([live, *dead], rows)
    assert report.num_zero_variance_groups == 3
    assert {run.reason for row in rows for run in row.runs} == {"zero_variance"}
    (batch,) = make_batches(rows, updates_per_step=1, micro_batch_tokens=64, aggregation="token")
    assert [row.trajectory for row in batch.rows] == ["a", "b"]
    assert [micro_batch.scale.tolist() for micro_batch in batch.micro_batches] == [[0.25] * 4]


def test_d12_a_trajectory_of_five_rows_counts_once() -> None:
    group = make_group([branches("split", 0.0, num_branches=5), branches("whole", 1.0, num_branches=1)])
    rows = rows_of(group)
    assert len(rows) == 6
    report = assign_advantages([group], rows, normalize_std=False)
    assert report.reward_mean == 0.5
    assert report.num_trajectories == 2
    assert [row.advantage for row in rows] == [-0.5] * 5 + [0.5]


def test_shuffling_permutes_within_groups_only() -> None:
    groups = [make_group([one_turn(f"{g}{i}", float(10 * g + (i == 0))) for i in range(8)], str(g)) for g in range(2)]
    seen: set[int] = set()
    before = np.random.get_state()[1].copy()
    for seed in range(40):
        generator = np.random.default_rng(seed)
        rows = rows_of(*groups)
        report = assign_advantages(groups, rows, normalize_std=False, shuffle_generator=generator)
        for g in range(2):
            values = [report.advantages[f"{g}{i}"] for i in range(8)]
            assert sorted(values) == [-0.125] * 7 + [0.875]
        seen.add([report.advantages[f"0{i}"] for i in range(8)].index(0.875))
    assert seen == set(range(8)), "the reward reaches every sample, not always the one that earned it"
    assert (np.random.get_state()[1] == before).all()


def test_a_row_of_no_group_is_refused() -> None:
    group = make_group([one_turn("a", 1.0), one_turn("b", 0.0)])
    with pytest.raises(RowError, match="trajectory stranger"):
        assign_advantages([group], [*rows_of(group), *build_rows(one_turn("stranger", 1.0))])
