"""Advantages per trajectory, and every reason for having none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from agentrl.batch.advantages import EPSILON, assign_advantages
from agentrl.batch.packing import make_batches
from agentrl.batch.rows import Row, build_rows
from agentrl.errors import RowError
from agentrl.types import Grade, Group, StopReason

from .builders import branches, make_call, make_group, make_sample, make_turn, one_turn


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


def test_d01_parts_that_cancel_are_a_group_without_signal_and_the_shares_say_so() -> None:
    cancel = [Grade(reward=a + b, parts={"a": a, "b": b}) for a, b in ((-3.0, 3.0), (3.0, -3.0))]
    groups = [
        make_group([one_turn("a0", 0.0, group="a"), one_turn("a1", 0.0, group="a")], "a"),
        make_group([one_turn("b0", 1.0, group="b"), one_turn("b1", 1.0, group="b")], "b"),
        make_group([one_turn("c0", 0.5, group="c"), one_turn("c1", 0.5, group="c")], "c"),
        make_group([one_turn("d0", 0.0, group="d"), one_turn("d1", 1.0, group="d")], "d"),
    ]
    for sample, grade in zip(groups[0].samples, cancel, strict=True):
        sample.grade = grade
    rows = rows_of(*groups)
    metrics = assign_advantages(groups, rows).metrics()
    assert [row.advantage for row in rows[:6]] == [0.0] * 6
    assert [row.live for row in rows] == [False] * 6 + [True] * 2
    assert (metrics["zero_variance_share"], metrics["all_zero_share"], metrics["all_one_share"]) == (0.75, 0.25, 0.25)
    assert all(math.isfinite(value) for value in metrics.values())


def test_d01_two_samples_at_a_success_rate_of_18_percent_are_mostly_dead_groups() -> None:
    generator = np.random.default_rng(0)
    rewards = (generator.random((2000, 2)) < 0.18).astype(float)
    groups = [
        make_group([one_turn(f"{g}-{i}", reward, group=str(g)) for i, reward in enumerate(pair)], str(g))
        for g, pair in enumerate(rewards.tolist())
    ]
    report = assign_advantages(groups, rows_of(*groups))
    assert report.metrics()["zero_variance_share"] == pytest.approx(0.18**2 + 0.82**2, abs=0.03)
    assert report.metrics()["zero_variance_share"] == pytest.approx(
        report.metrics()["all_zero_share"] + report.metrics()["all_one_share"]
    )


def test_d04_one_reward_that_is_none_or_nan_leaves_the_others_finite() -> None:
    rewards = [1.0, None, 0.0, math.nan]
    samples = [one_turn(str(i), reward) for i, reward in enumerate(rewards)]
    group = make_group(samples)
    rows = rows_of(group)
    report = assign_advantages([group], rows, normalize_std=False)
    assert report.advantages == {"0": 0.5, "2": -0.5}
    assert report.num_unmeasured == 2
    assert [row.live for row in rows] == [True, False, True, False]
    assert all(np.isfinite(row.advantages).all() for row in rows)
    with pytest.raises(ValidationError, match="parts"):
        Grade.model_validate({"reward": 1.0, "parts": {"a": 1.0, "b": None}})


def test_i06_a_member_that_is_too_old_is_withheld_from_the_loss_but_counts_in_the_baseline() -> None:
    """Four samples of ages 0, 0, 1 and 5 at a limit of 2."""
    version, limit = 5, 2
    turns = [make_turn(0, None, 0, [1, 2], [10, 11], calls=[make_call(0, 2, version - age)]) for age in (0, 0, 1, 5)]
    group = make_group([make_sample([turn], id=str(i), reward=float(i == 3)) for i, turn in enumerate(turns)])
    rows = rows_of(group)
    report = assign_advantages([group], rows, normalize_std=False)
    for row in rows:
        row.silence("stale", row.versions < version - limit)
    assert report.advantages == {"0": -0.25, "1": -0.25, "2": -0.25, "3": 0.75}
    assert [row.live for row in rows] == [True, True, True, False]
    assert [run.reason for run in rows[3].runs] == ["stale"]
    (batch,) = make_batches(rows, updates_per_step=1, micro_batch_tokens=64, aggregation="token")
    assert (batch.num_trajectories, batch.num_tokens) == (3, 6)
