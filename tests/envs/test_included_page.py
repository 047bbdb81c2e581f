"""docs/environments-included.md: its commands run, its files and its table are right."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import sys
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.envs.gymnasium_env import GymnasiumEnvironment
from agentrl.envs.gymnasium_play import GymnasiumConfig
from tests.small import SMALL

PAGE = (Path(__file__).parent.parent.parent / "docs" / "environments-included.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the page's files."""
    (tmp_path / "sums.jsonl").write_text(blocks("json")[0])
    (tmp_path / "tasks.jsonl").write_text(blocks("json tasks")[0])
    (tmp_path / "my_rewards.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    return tmp_path


def smaller(words: list[str], cache: Path) -> list[str]:
    """The same command, only smaller. `cache`: of models that were warm-started before."""
    counts_tasks = not {"dataset", "code_tests"} & set(words)
    overrides = [override for override in SMALL if counts_tasks or not override.startswith("env.")]
    if "code_tests" in words:  # its prompts are long
        overrides += [
            "sft.demonstrations=8",
            "sft.batch_size=4",
            "eval.tasks=2",
            "eval.sampled=false",
            "algorithm.group_size=2",
            "algorithm.groups_per_step=1",
        ]
    return [*words, *overrides, "runs_dir=runs", f"model.cache_dir={cache}"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[1:5]))
def test_each_command_runs(command: str, place: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    assert main(smaller(words, cache)) == 0
    assert capsys.readouterr().out


def test_there_are_commands_for_all() -> None:
    named = re.findall(r"--env (\w+)", "\n".join(COMMANDS))
    assert set(named) == {"dataset", "gymnasium", "code_tests"} and len(named) == len(COMMANDS) == 10


def test_a_run_reports_random_and_optimal_play_and_keeps_turn_rewards(
    place: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["env.id=CliffWalking-v1", "env.unfinished_reward=-100", "name=here"]
    assert main(smaller(["train", "--env", "gymnasium", *options], cache)) == 0
    out = capsys.readouterr().out
    beside = r"random -65374\.\d+, optimal -13"
    assert re.search(rf"held-out after 0 steps, greedy: .* of 5 tasks, reward -1\d\d\.\d+ \({beside}\)", out)
    assert re.search(rf"^held-out reward \(greedy\): -1\d\d\.\d+   {beside}$", out, re.M)
    summary = json.loads((place / "runs" / "here" / "summary.json").read_text())
    assert (
        summary["references"]["optimal"] == pytest.approx(-13)
        and -200 < summary["evals"]["greedy_after"]["reward"] <= -100
    )
    metrics = [json.loads(line) for line in (place / "runs" / "here" / "metrics.jsonl").read_text().splitlines()]
    assert all(record["references"] == summary["references"] for record in metrics if record["kind"] == "eval")
    with sqlite3.connect("runs/agentrl.db") as database:
        rewards = database.execute("select turn_rewards from grades").fetchall()
    assert rewards and all(json.loads(turns) for (turns,) in rewards)


def test_a_data_set_reports_what_was_left_out(place: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (place / "sums.jsonl").read_text()
    (place / "sums.jsonl").write_text(lines + lines)
    words = ["eval", "--env", "dataset", "env.path=sums.jsonl", "env.held_out_fraction=0.3", "env.reward=number"]
    assert main(smaller(words, cache)) == 0
    assert "num_duplicates 10" in capsys.readouterr().out


def test_the_figures_of_the_page() -> None:
    rows = re.findall(r"^\| (\w+-v\d)(, `is_slippery=false`)? \| (?:about )?(-?[\d.]+) \| (-?[\d.]+)", PAGE, re.M)
    assert len(rows) == 4
    for id, steady, random, optimal in rows:
        config = GymnasiumConfig(id=id, kwargs={"is_slippery": False} if steady else {}, held_out_tasks=3000)
        references = GymnasiumEnvironment.references(config, GymnasiumEnvironment.tasks(config, "held_out"))
        assert references["random"] == pytest.approx(float(random), rel=0.01)
        assert references["optimal"] == pytest.approx(float(optimal), rel=0.015)
    for name in ("FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1"):
        (names,) = re.findall(rf"^\| {name} \| ([a-z, ]+) \|$", PAGE, re.M)
        help_text = GymnasiumEnvironment.tasks(GymnasiumConfig(id=name, train_tasks=1), "train")[0].messages[0].text
        assert re.findall(r"<action>(\w+)</action>", help_text) == names.split(", ")


@pytest.mark.parametrize("id", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1"])
def test_gymnasium_keeps_the_contract(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", "gymnasium", f"env.id={id}", "env.train_tasks=20"]) == 0
    assert "✗" not in capsys.readouterr().out


@pytest.mark.parametrize("reward", ["my_rewards:close", "exact", "number", "contains"])
def test_dataset_keeps_the_contract(reward: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["env.path=sums.jsonl", "env.held_out_fraction=0.3", f"env.reward={reward}"]
    assert main(["env", "check", "dataset", *options]) == 0
    told = capsys.readouterr().out
    assert "✗" not in told and ("✓ attacks don't pay" in told) == (":" not in reward)
