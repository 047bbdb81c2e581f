"""`agentrl replay TRAJECTORY --regrade`: a grade more, with what changed, and never a failure in place of a measure."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from agentrl.environment import EnvironmentContext
from agentrl.errors import EngineError
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.types import Artifacts, Grade, Task, Trajectory
from tests.replay.stage import Stage, replay


class Generous(Toy):
    """Half the reward for trying, and it says so."""

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=0.5, parts={"tried": 0.5}, grader="toy", grader_version="2")


class Broken(Toy):
    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        raise RuntimeError("the answers are gone")


def grades(stage: Stage) -> list[tuple[int, Any]]:
    """(id, reward) of all grades, in their order, by plain SQL."""
    with sqlite3.connect(stage.database) as database:
        return database.execute("select id, reward from grades order by id").fetchall()


def test_the_same_grader_appends_an_equal_grade(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record("red")
    assert replay(stage, trajectory.id, "--regrade") == 0
    assert capsys.readouterr().out == "grade 2 appended, equal to the one before\n"
    assert grades(stage) == [(1, 1.0), (2, 1.0)]


def test_what_changed_is_told_and_the_new_grade_is_the_latest(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record("red")
    stage.use(Generous)
    assert replay(stage, trajectory.id, "--regrade") == 1
    assert capsys.readouterr().out.splitlines() == [
        "  grader_version: 1 → 2", "  parts.tried: None → 0.5", "  reward: 1.0 → 0.5", "grade 2 appended",
    ]  # fmt: skip
    with Store.open(stage.database) as store:
        latest = store.load_sample(trajectory.id)
    assert latest.grade_id == 2 and latest.reward == 0.5 and grades(stage)[0] == (1, 1.0)


def test_a_grader_that_fails_takes_no_measured_grades_place(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record("red")
    stage.use(Broken)
    assert replay(stage, trajectory.id, "--regrade") == 1
    out = capsys.readouterr().out
    assert "the answers are gone" in out and "not appended" in out and grades(stage) == [(1, 1.0)]


def test_what_could_not_be_measured_then_is_measured_now(stage: Stage) -> None:
    (trajectory,) = stage.record("red", env=Broken)
    stage.use(Toy)
    assert replay(stage, trajectory.id, "--regrade") == 1
    assert grades(stage) == [(1, None), (2, 1.0)]


def test_an_ending_that_is_not_graded_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (trajectory,) = stage.record(EngineError("gone"), rollout={"max_attempts": 1})
    assert replay(stage, trajectory.id, "--regrade") == 2
    assert "ended as engine_error: there is nothing to grade" in capsys.readouterr().err


def test_while_another_worker_holds_the_group_nobody_else_grades(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    (trajectory,) = stage.record("red")
    with sqlite3.connect(stage.database) as database:
        database.execute("update groups set state = 'leased', owner = 'other', lease_generation = 2")
    assert replay(stage, trajectory.id, "--regrade") == 1
    assert "lease 1 is over" in capsys.readouterr().err and grades(stage) == [(1, 1.0)]
