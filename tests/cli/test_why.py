"""`agentrl why`: one screen that tells why a rollout got its reward and who trained on it, and reads well."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.store import StepRow, Store
from agentrl.types import Grade, Purpose, Sampler, StopReason
from tests.cli.test_show import EVIL
from tests.store.builders import leased, planned, record, start_run, trajectory, turn


def why(database: Path, *words: str) -> int:
    return main(["why", *words, "--db", str(database)])


async def played(store: Store, run: str) -> str:
    """A complete group of two samples, "good" and "bad", of which the bad one is graded with words."""
    group = await planned(store, run)
    lease = await leased(store, group)
    await record(store, trajectory(run, group, id="good"), lease.generation)
    bad = trajectory(run, group, id="bad", sample=1, stop_reason=StopReason.MAX_TURNS, error="three turns\x1b[2J")
    await record(store, bad, lease.generation, num_turns=2, reward=None)
    log = "\n".join(f"test {number} failed" for number in range(20)) + "\x1b[2J"
    grade = Grade(reward=0.25, parts={"tests": 0.25}, turn_rewards=[0.0, 0.25], grader="pytest", output=log)
    await store.recorder.add_grade(bad, grade.model_copy(update={"grader_version": "9"}))
    await store.queue.complete(lease)
    return group


async def train(store: Store, run: str, group: str) -> int:
    """A step on the group by version 1, the child of the one that sampled it."""
    before = await store.add_version(run, parent=(run, 0), step=None, weights_hash="w1", ordinal=1)
    step = await store.begin_step(run, ordinal=0, version=before)
    await store.queue.claim(run, step, [group])
    after = await store.add_version(run, parent=(run, before), step=step, weights_hash="w2", ordinal=2)
    rows = []
    for place, sample in enumerate(store.load_group(group).samples):
        spans = [(3, 4, 0.0, "stale"), (4, 5, 0.0, "stale"), (6, 7, 0.5, "sampler")]
        rows.append(
            StepRow(
                batch=0, position=place, trajectory=sample.trajectory.id, end_turn=len(sample.trajectory.turns) - 1,
                grade_id=sample.grade_id, advantage=0.5 - place, weights=spans, ratio_mean=1.01, ratio_max=1.5,
                clip_share=0.125,
            )
        )  # fmt: skip
    await store.record_step(run, step, rows=rows, metrics={"loss": 0.5, "kl": float("nan")}, version_after=after)
    return step


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    database = tmp_path / "store.db"

    async def write() -> None:
        with Store.open(database) as store:
            run = await start_run(store, train={"steps": 60, "devices": None, "threads": [1, 2], "keep_best": False})
            group = await played(store, run)
            await train(store, run, group)
            await store.recorder.add_grade(store.load_trajectory("good"), Grade(reward=0.75, grader="later"))

    asyncio.run(write())
    return database


def test_one_screen_tells_ending_reward_output_and_use(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(trained, "ba") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and all(len(line) <= 120 for line in lines)
    text = "\n".join(lines)
    assert lines[0].startswith("trajectory bad of run ")
    for expected in (
        "  task      t0 of toy, sample 1 of 2 in group ",
        "  ending    max_turns after 2 turns, 4 ids sampled by version 0",
        "  error     three turns\\x1b[2J",
        "  reward    0.250  by pytest 9",
        "  parts     tests 0.250",
        "  by turn   0.000 0.250",
        "  output    … 8 lines before these",
        "test 19 failed\\x1b[2J",
        "  group     complete; rewards 0.750, 0.250",
        "trained on by step 0 of run ",
        "  weights   version 1 → version 2; staleness 1",
        "  Row       up to turn 1, batch 0: advantage -0.500",
        "  ratio     mean 1.0100, max 1.5000, clipped 12.5 %",
        "  weight 0: stale, ids [3, 4) [4, 5)",
        "  weight 0.5: sampler, ids [6, 7)",
    ):
        assert expected in text
    assert "test 7 failed" not in text and "\x1b" not in text


def test_a_step_that_used_an_earlier_grade_says_so(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(trained, "good") == 0
    text = capsys.readouterr().out
    assert "  reward    0.750  by later" in text and "  grade     an earlier one: 1.000" in text


def test_an_abandoned_step_says_so(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def go_back() -> None:
        with Store.open(trained) as store:
            await store.abandon(store.runs()[0].id, version=1, step=None)

    asyncio.run(go_back())
    assert why(trained, "good") == 0 == why(trained, "--step", "0")
    text = capsys.readouterr().out
    assert "(ordinal 0), ABANDONED: a later resume went back before it" in text and "recorded, ABANDONED" in text


def test_a_step_tells_weights_metrics_and_rows(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(trained, "--step", "0", "--run", "toy run") == 0
    text = capsys.readouterr().out
    for expected in (
        "(toy run), ordinal 0, recorded",
        "  env       name=toy\n",
        "  train     steps=60 threads=[1, 2] keep_best=false\n",
        "  seed      3\n",
        "  from      version 1, weights w1",
        "  to        version 2, weights w2",
        "    loss                        0.5000",
        "  2 Rows:",
        "    good  turn 0  reward 1.0000  advantage +0.500  ratio max 1.5000  clipped 12.5 %  weight 0: stale",
    ):
        assert expected in text


def test_a_step_as_json_has_the_whole_config(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why(trained, "--step", "0", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["env"] == {"name": "toy"} and told["config"]["train"]["devices"] is None
    assert (told["weights_before"], told["weights_after"]) == ("w1", "w2")
    assert told["metrics"] == {"loss": 0.5} and told["state"] == "recorded" and not told["abandoned"]
    assert [(row["trajectory"], row["advantage"]) for row in told["rows"]] == [("good", 0.5), ("bad", -0.5)]


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["goodd"], "no trajectory id starts with 'goodd'; near: good", 1),
        (["--step", "7"], "has no step 7; it has 0 to 0", 1),
        (["--step", "0", "--run", "nosuch"], "no run id starts with 'nosuch'", 1),
        ([], "name a trajectory, or a step", 2),
        (["good", "--step", "0"], "name a trajectory, or a step", 2),
        (["good", "--json"], "--json goes with --step N", 2),
    ],
)
def test_what_is_not_there_is_named(
    trained: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str, code: int
) -> None:
    assert why(trained, *words) == code
    assert says in capsys.readouterr().err


async def unused(store: Store, run: str, case: str) -> None:
    """A trajectory "it" that nobody trained on."""
    if case == "no group":
        await record(store, trajectory(run, id="it", turns=[turn(sampler=Sampler.HUMAN, calls=[])]), reward=None)
        return
    group = await planned(store, run, purpose=Purpose.EVAL if case == "eval" else Purpose.TRAIN)
    lease = await leased(store, group)
    await record(store, trajectory(run, group, id="it", task=store.load_group(group).task), lease.generation)
    if case == "running":
        return
    if case == "tried again":
        await record(store, trajectory(run, group, attempt=1), lease.generation)
    await record(store, trajectory(run, group, sample=1), lease.generation)
    await store.queue.complete(lease)
    if case == "dropped":
        await store.queue.drop(group, f"too few{EVIL}")
    if case == "archived":
        await store.queue.archive(group)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no group", "it belongs to no group"),
        ("eval", "its group is for eval"),
        ("running", "its group isn't complete yet"),
        ("tried again", "its sample was tried again"),
        ("waits", "its group waits for a step"),
        ("dropped", "its group was dropped: too few"),
        ("archived", "its group was archived unused"),
    ],
)
def test_a_rollout_that_nobody_trained_on_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, says: str
) -> None:
    async def write() -> None:
        with Store.open(tmp_path / "store.db") as store:
            await unused(store, await start_run(store), case)

    asyncio.run(write())
    assert why(tmp_path / "store.db", "it") == 0
    text = capsys.readouterr().out
    assert f"trained on by nobody: {says}" in text and "\x1b" not in text
    assert ("reward    none: it isn't graded" in text) == (case == "no group") == ("sampler=human" in text)
