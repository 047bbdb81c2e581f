"""`agentrl replay TRAJECTORY`: every id with its mask, logprob, version and advantage; and what bad input is told."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.batch.rows import build_rows
from agentrl.cli import main
from agentrl.store import StepRow, Store
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.types import Sample, Trajectory
from tests.models.families import tokenizer
from tests.replay.stage import Stage, replay
from tests.replay.test_environment import CALL, THOUGHT, Again
from tests.store.builders import record, start_run, trajectory

SAMPLED = re.compile(r"^ +(\d+)  id +(\d+)  mask 1  logprob +(\S+)  version (\S+)  advantage (\S+)(.*)  '(.*)'$", re.M)
UNSAMPLED = re.compile(r"^ +(\d+)  id +(\d+)  mask 0  ", re.M)


def train_on(stage: Stage, rollout: Trajectory, advantages: list[float]) -> None:
    """A step with a Row per advantage; the first id of each has weight 0."""
    rows = build_rows(Sample(trajectory=rollout, grade=None))
    stored = [
        StepRow(
            batch=0, position=place, trajectory=rollout.id, end_turn=row.end_turn, grade_id=1, advantage=advantage,
            weights=[(int(row.mask.argmax()), int(row.mask.argmax()) + 1, 0.0, "stale")],
        )
        for place, (row, advantage) in enumerate(zip(rows, advantages, strict=True))
    ]  # fmt: skip

    async def write() -> None:
        with Store.open(stage.database) as store:
            step = await store.begin_step(rollout.run, ordinal=0, version=0)
            await store.record_step(rollout.run, step, rows=stored, metrics={}, version_after=None)

    asyncio.run(write())


def test_every_id_is_shown_as_the_model_saw_it(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (rollout,) = stage.record(CALL, "red")
    train_on(stage, rollout, [0.378])
    assert replay(stage, rollout.id) == 0
    out = capsys.readouterr().out
    sampled = SAMPLED.findall(out)
    assert [int(found[1]) for found in sampled] == [i for turn in rollout.turns for i in turn.sampled_ids]
    assert {found[2:5] for found in sampled} == {("-0.2500", "3", "+0.378")}
    assert [found[5] for found in sampled] == [" weight 0 (stale)", *[""] * (len(sampled) - 1)]
    prompts = [i for turn in rollout.turns for i in turn.prompt_ids]
    assert [int(found[1]) for found in UNSAMPLED.findall(out)] == prompts


def test_branches_have_the_advantages_of_their_own_rows(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer("qwen3").save_pretrained(stage.model)
    (rollout,) = stage.record(THOUGHT, "two", env=Again, rollout={"renderer_mode": "rerender"})
    train_on(stage, rollout, [0.5, -0.5])
    assert replay(stage, rollout.id) == 0
    shown = [found[4] for found in SAMPLED.findall(capsys.readouterr().out)]
    counts = [len(turn.sampled_ids) for turn in rollout.turns]
    assert shown == ["+0.500"] * counts[0] + ["-0.500"] * counts[1]


def test_show_has_the_same_lines_without_the_prompts(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (rollout,) = stage.record(CALL, "red")
    train_on(stage, rollout, [0.378])
    assert main(["show", rollout.id, "--db", stage.database]) == 0
    short = capsys.readouterr().out.splitlines()
    replay(stage, rollout.id)
    whole = capsys.readouterr().out.replace("  mask 1  logprob", "  logprob").splitlines()
    assert [line for line in whole if "  mask 0  " not in line] == short and "advantage +0.378" in "\n".join(short)


# ------------------------------------------------------------------------------------------------------- bad input


def refused(stage: Stage, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said where the exit code is 2."""
    capsys.readouterr()
    assert replay(stage, *words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("mode", [[], ["--env"], ["--regrade"]])
def test_an_unknown_id_is_answered_with_near_ones(
    stage: Stage, mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (rollout,) = stage.record("red")
    wrong = rollout.id[:-3] + "xyz"
    assert f"near: {rollout.id}" in refused(stage, capsys, wrong, *mode)


def test_a_database_that_is_not_there(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no database there" in refused(stage, capsys, "any") and not Path(stage.database).exists()


def test_a_trajectory_without_an_ending(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (rollout,) = stage.record("red")
    with sqlite3.connect(stage.database) as database:
        database.execute("update trajectories set stop_reason = null")
    assert "has no ending yet" in refused(stage, capsys, rollout.id, "--env")


def test_a_plugin_that_is_gone_is_named_with_the_package_that_brought_it(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    (rollout,) = stage.record("red")
    stage.patch.undo()
    said = refused(stage, capsys, rollout.id, "--env")
    assert "unknown env 'toy'" in said and "was made with acme-toys 1.2" in said


class OneOption(ToyConfig):
    messages: int  # type: ignore[assignment]


class OtherOptions(Toy):
    Config = OneOption


def test_options_that_no_longer_fit(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (rollout,) = stage.record("red")
    stage.use(OtherOptions)
    said = refused(stage, capsys, rollout.id, "--env")
    assert "messages" in said and "It was made with acme-toys 1.2" in said


class Newer(Toy):
    version = "2"


def test_another_version_is_a_warning(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (rollout,) = stage.record("red")
    stage.use(Newer)
    stage.patch.setattr(plugins, "made_by", lambda group, name: {"acme-toys": "1.3"})
    assert replay(stage, rollout.id, "--env") == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "agentrl replay: warning: acme-toys 1.2 made it, 1.3 is installed",
        "agentrl replay: warning: environment toy was version 1, now 2",
    ]


def test_a_run_keeps_the_package_of_its_environment() -> None:
    assert plugins.made_by("agentrl.envs", "calculator") == {"agentrl": version("agentrl")}
    assert plugins.made_by("agentrl.envs", "nobody's") == {}


def test_a_model_folder_that_is_gone(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (rollout,) = stage.record("red")
    moved = stage.model.rename(stage.folder / "moved")
    said = refused(stage, capsys, rollout.id, "--env")
    assert str(stage.model) in said and "acme-toys 1.2" in said and "--model" in said
    assert replay(stage, rollout.id, "--env", "--model", str(moved)) == 0


def test_modes_exclude_one_another(stage: Stage) -> None:
    with pytest.raises(SystemExit) as left:
        replay(stage, "any", "--env", "--regrade")
    assert left.value.code == 2


def test_a_record_by_hand_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking needs neither the environment nor a tokenizer nor torch."""
    database = str(tmp_path / "store.db")

    async def write() -> str:
        with Store.open(database) as store:
            rollout = trajectory(await start_run(store))
            await record(store, rollout)
            return rollout.id

    id = asyncio.run(write())
    assert main(["replay", id, "--db", database]) == 0
    assert "id       7  mask 1" in capsys.readouterr().out and "agentrl.cli.replay" in sys.modules
