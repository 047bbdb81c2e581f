"""Rows: whole lists of tiny ints, the refusals, and T3 on random trees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.batch.packing import make_batches
from agentrl.batch.rows import WeightRun, build_rows
from agentrl.config import LimitsConfig
from agentrl.errors import RowError
from agentrl.rollout.limits import call_budget
from agentrl.types import Sample, Sampler, StopReason, Turn

from .builders import make_call, make_sample, make_turn


def none_if_nan(values: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def five_turns() -> Sample:
    """The example in the docstring of agentrl.batch.rows."""
    return make_sample(
        [
            make_turn(0, None, 0, [1, 2], [10, 11], logprobs=[-0.1, -0.2]),
            make_turn(
                1, 0, 4, [3], [12, 13], logprobs=[-0.3, -0.4], calls=[make_call(0, 1, 4), make_call(1, 2, 5, 0.5)]
            ),
            make_turn(2, 0, 3, [4], [14], logprobs=[-0.5]),
            make_turn(3, 2, 5, [5], [15], sampler=Sampler.SCRIPTED),
            make_turn(4, 3, 7, [6], [16], logprobs=[-0.6]),
        ]
    )


def test_append_is_one_row() -> None:
    turns = [
        make_turn(0, None, 0, [1, 2], [10, 11], logprobs=[-0.1, -0.2]),
        make_turn(1, 0, 4, [3], [12], logprobs=[-0.3]),
    ]
    (row,) = build_rows(make_sample(turns, reward=0.5))
    assert (row.trajectory, row.end_turn, row.group, row.grade_id) == ("t", 1, "g", 7)
    assert row.ids.tolist() == [1, 2, 10, 11, 3, 12]
    assert row.mask.tolist() == [0, 0, 1, 1, 0, 1]
    assert row.weights.tolist() == [0, 0, 1, 1, 0, 1]
    assert none_if_nan(row.logprobs) == [None, None, -0.1, -0.2, None, -0.3]
    assert row.versions.tolist() == [-1, -1, 0, 0, -1, 0]
    assert row.turn_index.tolist() == [0, 0, 0, 0, 1, 1]
    assert row.rewards.tolist() == [0, 0, 0, 0, 0, 0.5]
    assert row.runs == []


def test_five_turns_of_the_docstring() -> None:
    first, second = build_rows(five_turns())
    assert first.end_turn == 1
    assert first.ids.tolist() == [1, 2, 10, 11, 3, 12, 13]
    assert first.mask.tolist() == [0, 0, 1, 1, 0, 1, 1]
    assert first.weights.tolist() == [0, 0, 1, 1, 0, 1, 1]
    assert none_if_nan(first.logprobs) == [None, None, -0.1, -0.2, None, -0.3, -0.4]
    assert first.versions.tolist() == [-1, -1, 0, 0, -1, 4, 5]
    assert first.temperature.tolist() == [1, 1, 1, 1, 1, 1, 0.5]
    assert first.turn_index.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert first.rewards.tolist() == [0] * 7
    assert first.runs == []

    assert second.end_turn == 4
    assert second.ids.tolist() == [1, 2, 10, 4, 14, 5, 15, 6, 16]
    assert second.mask.tolist() == [0, 0, 0, 0, 1, 0, 1, 0, 1]
    assert second.weights.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert none_if_nan(second.logprobs) == [None, None, None, None, -0.5, None, None, None, -0.6]
    assert second.versions.tolist() == [-1, -1, -1, -1, 0, -1, -1, -1, 0]
    assert second.turn_index.tolist() == [0, 0, 0, 2, 2, 3, 3, 4, 4]
    assert second.rewards.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert second.runs == [WeightRun(6, 7, 0.0, "sampler=scripted")]


def test_for_sft_gives_scripted_turns_weight() -> None:
    first, second = build_rows(five_turns(), for_sft=True)
    assert first.weights.tolist() == first.mask.tolist()
    assert second.weights.tolist() == second.mask.tolist()
    assert second.runs == []


def test_two_branches_count_the_shared_ids_once() -> None:
    turns = [
        make_turn(0, None, 0, [1], [10, 11, 12]),
        make_turn(1, 0, 3, [2], [13]),
        make_turn(2, 0, 4, [3], [14]),
    ]
    left, right = build_rows(make_sample(turns))
    assert left.ids.tolist() == [1, 10, 11, 2, 13]
    assert left.mask.tolist() == [0, 1, 1, 0, 1]
    assert right.ids.tolist() == [1, 10, 11, 12, 3, 14]
    assert right.mask.tolist() == [0, 0, 0, 1, 0, 1]


def test_a_turn_kept_in_part_ends_its_own_row() -> None:
    turns = [make_turn(0, None, 0, [1], [10, 11]), make_turn(1, 0, 2, [2], [12])]
    assert [(row.end_turn, row.mask.tolist()) for row in build_rows(make_sample(turns))] == [
        (0, [0, 1, 1]),
        (1, [0, 0, 0, 1]),
    ]


def test_untrained_turns_are_context_and_end_no_row() -> None:
    turns = [
        make_turn(0, None, 0, [1], [10]),
        make_turn(1, None, 0, [50], [51], agent="user", trained=False),
        make_turn(2, 0, 2, [2], [11], trained=False),
        make_turn(3, 2, 4, [3], [12]),
    ]
    (row,) = build_rows(make_sample(turns))
    assert row.ids.tolist() == [1, 10, 2, 11, 3, 12]
    assert row.mask.tolist() == [0, 1, 0, 0, 0, 1]


def test_a_trained_turn_whose_only_child_is_untrained_still_ends_a_row() -> None:
    turns = [make_turn(0, None, 0, [1], [10]), make_turn(1, 0, 2, [2], [11], trained=False)]
    assert [row.ids.tolist() for row in build_rows(make_sample(turns))] == [[1, 10]]


def test_turn_rewards_are_spread_and_none_is_lost() -> None:
    turns = [
        make_turn(0, None, 0, [1], [10, 11]),
        make_turn(1, None, 0, [50], [51], agent="user", trained=False),
        make_turn(2, 0, 3, [2], [12]),
    ]
    (row,) = build_rows(make_sample(turns, reward=7.0, turn_rewards=[1.0, 2.0, 4.0]))
    assert row.rewards.tolist() == [0, 0, 3.0, 0, 4.0]


def test_an_unmeasured_reward_is_not_zero() -> None:
    (row,) = build_rows(make_sample([make_turn(0, None, 0, [1], [10, 11])], reward=None))
    assert none_if_nan(row.rewards) == [0, 0, None]


def test_endings_that_are_not_trained_get_a_reason() -> None:
    turns = [make_turn(0, None, 0, [1], [10]), make_turn(1, 0, 2, [2], [11, 12])]
    for for_sft in (False, True):
        (row,) = build_rows(make_sample(turns, stop_reason=StopReason.SANDBOX_ERROR), for_sft=for_sft)
        assert row.mask.tolist() == [0, 1, 0, 1, 1]
        assert row.weights.tolist() == [0] * 5
        assert row.runs == [WeightRun(1, 2, 0.0, "ending=sandbox_error"), WeightRun(3, 5, 0.0, "ending=sandbox_error")]


def test_greedy_ids_have_no_ratio() -> None:
    (row,) = build_rows(
        make_sample([make_turn(0, None, 0, [1], [10, 11], calls=[make_call(0, 1), make_call(1, 2, 0, 0.0)])])
    )
    assert row.weights.tolist() == [0, 1, 0]
    assert row.runs == [WeightRun(2, 3, 0.0, "temperature=0")]
    assert row.temperature.tolist() == [1, 1, 1]


def test_silence_keeps_the_first_reason_and_restore_puts_back() -> None:
    (row,) = build_rows(make_sample([make_turn(0, None, 0, [1], [10, 11, 12])]))
    row.silence("first", row.ids == 11)
    row.silence("second")
    assert row.runs == [
        WeightRun(2, 3, 0.0, "first"),
        WeightRun(1, 2, 0.0, "second"),
        WeightRun(3, 4, 0.0, "second"),
    ]
    assert not row.live
    (again,) = build_rows(make_sample([make_turn(0, None, 0, [1], [10, 11, 12])]))
    again.restore(-0.5, [(2, 3, 0.0, "first")])
    assert again.weights.tolist() == [0, 1, 0, 1]
    assert again.advantages.tolist() == [0, -0.5, -0.5, -0.5]
    assert again.advantage == -0.5


ROW_ERRORS: dict[str, tuple[Turn, str]] = {
    "logprobs": (make_turn(1, 0, 2, [2], [11, 12], logprobs=[-0.1]), "2 sampled ids but 1 logprobs"),
    "calls": (make_turn(1, 0, 2, [2], [11, 12], calls=[make_call(0, 1)]), "2 sampled ids but calls over 1"),
    "gap": (make_turn(1, 0, 2, [2], [11, 12], calls=[make_call(1, 2)]), r"over \[1, 2\) where one from 0"),
    "keep": (make_turn(1, 0, 3, [2], [11]), "keeps 3 of the 2 ids of turn 0"),
    "parent": (make_turn(1, 1, 0, [2], [11]), "not an earlier turn"),
    "orphan": (make_turn(1, None, 2, [2], [11]), "keeps 2 ids of no parent"),
    "agent": (make_turn(1, 0, 2, [2], [11], agent="judge"), "another agent"),
    "nan": (make_turn(1, 0, 2, [2], [11], logprobs=[math.nan]), "not finite"),
    "index": (make_turn(2, 0, 2, [2], [11]), "stands at place 1"),
    "context": (make_turn(1, None, 0, [], [11]), "empty context"),
    "temperature": (
        make_turn(1, 0, 2, [2], [11], calls=[replace(make_call(0, 1), sampling={})]),
        "temperature None",
    ),
}


@pytest.mark.parametrize("name", ROW_ERRORS)
def test_t5_a_row_is_refused_by_trajectory_and_turn(name: str) -> None:
    turn, message = ROW_ERRORS[name]
    with pytest.raises(RowError, match=rf"trajectory bad, turn {turn.index}.*{message}"):
        build_rows(make_sample([make_turn(0, None, 0, [1], [10]), turn], id="bad"))


def test_t5_turn_rewards_must_be_one_per_turn() -> None:
    with pytest.raises(RowError, match="trajectory t: the grade has 2 turn rewards for 1 turns"):
        build_rows(make_sample([make_turn(0, None, 0, [1], [10])], turn_rewards=[0.0, 1.0]))


def test_an_unfinished_trajectory_is_refused() -> None:
    with pytest.raises(RowError, match="not finished"):
        build_rows(make_sample([make_turn(0, None, 0, [1], [10])], stop_reason=None))


def test_a01_ids_that_the_tokenizer_would_merge_stay_as_sampled() -> None:
    """`Hel` + `lo` are two sampled ids although the text `Hello` is one id: nothing is encoded again."""
    turns = [make_turn(0, None, 0, [1], [100, 101]), make_turn(1, 0, 3, [5, 6], [7])]
    (row,) = build_rows(make_sample(turns))
    assert row.ids.tolist() == [1, 100, 101, 5, 6, 7]
    assert len(row.ids) == len(row.mask) == len(row.logprobs) == len(row.versions)


@st.composite
def trees(draw: st.DrawFn) -> Sample:
    """Random turns: any earlier parent, any keep, some untrained; every sampled id is unique, so it names its place."""
    turns: list[Turn] = []
    lengths: list[int] = []
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        keep = 0 if parent is None else draw(st.one_of(st.just(lengths[parent]), st.integers(0, lengths[parent])))
        prompt = [1] * draw(st.integers(0 if keep else 1, 3))
        sampled = [1000 * (index + 1) + i for i in range(draw(st.integers(0, 3)))]
        logprobs = [-float(id) for id in sampled]
        turns.append(make_turn(index, parent, keep, prompt, sampled, logprobs=logprobs, trained=draw(st.booleans())))
        lengths.append(keep + len(prompt) + len(sampled))
    return make_sample(turns)


@given(trees())
def test_t3_every_sampled_id_has_mask_1_in_exactly_one_row_in_its_context(sample: Sample) -> None:
    trajectory = sample.trajectory
    counted: list[int] = []
    rows = build_rows(sample)
    for row in rows:
        assert row.ids.tolist() == trajectory.full(row.end_turn), "a Row is a sequence that was sampled from"
        for place in np.flatnonzero(row.mask):
            turn = trajectory.turns[row.turn_index[place]]
            id = int(row.ids[place])
            offset = turn.sampled_ids.index(id)
            assert row.ids[:place].tolist() == trajectory.context(turn.index) + turn.sampled_ids[:offset]
            assert row.logprobs[place] == turn.logprobs[offset]
            counted.append(id)
    expected = [id for turn in trajectory.turns if turn.trained for id in turn.sampled_ids]
    assert sorted(counted) == sorted(expected)
    if expected:
        assert sum(row.rewards.sum() for row in rows) == 1.0


def test_i05_every_id_carries_the_version_that_sampled_it() -> None:
    """Weights change between turn 1 and turn 2, and in the middle of turn 3."""
    turns = [
        make_turn(0, None, 0, [1], [10], calls=[make_call(0, 1, 3)]),
        make_turn(1, 0, 2, [2], [11], calls=[make_call(0, 1, 3)]),
        make_turn(2, 1, 4, [3], [12], calls=[make_call(0, 1, 4)]),
        make_turn(3, 2, 6, [4], [13, 14, 15], calls=[make_call(0, 1, 4), make_call(1, 3, 5)]),
    ]
    (row,) = build_rows(make_sample(turns))
    assert row.versions.tolist() == [-1, 3, -1, 3, -1, 4, -1, 4, 5, 5]


def test_d13_a_length_is_the_sum_of_the_mask_not_a_span() -> None:
    turns = [make_turn(0, None, 0, [1, 2], [10, 11]), make_turn(1, 0, 4, [3, 4, 5, 6, 7, 8], [12])]
    sample = make_sample(turns)
    (row,) = build_rows(sample)
    assert row.mask.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1]
    (batch,) = make_batches([row], updates_per_step=1, micro_batch_tokens=64, aggregation="token")
    assert batch.num_tokens == sample.trajectory.num_sampled == 3
    assert batch.micro_batches[0].scale.tolist() == [1 / 3] * 3
    limits = LimitsConfig(max_episode_tokens=5)
    room, ending = call_budget(limits, window=100, num_context=len(row), num_sampled=sample.trajectory.num_sampled)
    assert (room, ending) == (2, StopReason.TOKEN_BUDGET)


def test_a15_a_row_that_is_left_out_is_left_out_of_loss_counts_and_lengths_alike() -> None:
    """A reply cut by its limit, after a turn with a tool: one weight column is the source of everything."""
    cut, whole = five_turns(), make_sample([make_turn(0, None, 0, [1], [10, 11])], id="whole")
    cut.trajectory.stop_reason = StopReason.TURN_LENGTH
    rows = build_rows(cut)
    for row in rows:
        row.silence("truncated")
    assert sum(int(row.weights.sum()) for row in rows) == 0 and any(row.mask.any() for row in rows)
    (batch,) = make_batches([*rows, *build_rows(whole)], updates_per_step=1, micro_batch_tokens=64, aggregation="token")
    assert (batch.num_tokens, batch.num_trajectories) == (2, 1)
    assert [m.scale.tolist() for m in batch.micro_batches] == [[0.5, 0.5]]
    assert make_batches(rows, updates_per_step=1, micro_batch_tokens=64, aggregation="trajectory") == []


def test_a05_a_prefix_that_was_rewritten_starts_a_second_row_and_is_counted() -> None:
    """The second turn's prompt is 1 2 9 4 5: of what was sampled, 3 4, nothing is left in its place."""
    sample = make_sample([make_turn(0, None, 0, [1, 2], [3, 4]), make_turn(1, 0, 2, [9, 4, 5], [6])])
    first, second = build_rows(sample)
    assert first.ids.tolist() == [1, 2, 3, 4] and first.mask.tolist() == [0, 0, 1, 1]
    assert second.ids.tolist() == [1, 2, 9, 4, 5, 6] and second.mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert sample.trajectory.num_prefix_breaks == 1
    unbroken = make_sample([make_turn(0, None, 0, [1, 2], [3, 4]), make_turn(1, 0, 4, [5], [6])])
    assert len(build_rows(unbroken)) == 1 and unbroken.trajectory.num_prefix_breaks == 0
