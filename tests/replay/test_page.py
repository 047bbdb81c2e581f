"""docs/replay.md: its commands run on a small run and print lines of the form that the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.envs import calculator
from agentrl.store import Store
from agentrl.types import Purpose
from tests.replay.trained import Trained
from tests.small import EvenIds, small_overrides

PAGE = (Path(__file__).parent.parent.parent / "docs" / "replay.md").read_text()
EXAMPLES = re.findall(r"```console\n\$ (.*?)\n```\n\n```\n(.*?)```", PAGE, re.S)
(CHANGED,) = re.findall(r"write `114.0`:\n\n```\n(.*?)```", PAGE, re.S)


def shapes(text: str) -> set[str]:
    """Each line without what differs from run to run: texts, ids, paths, numbers, endings, blanks."""
    rules = [
        (r"'.*'$", "T"), (r"^( +(?:system|user)).*", r"\1"), (r"call .*, char", "call C, char"), (r"\[\w+\]", "[E]"),
        (r"(\S*/)+\S+", "P"), (r"\b(?=\w*\d)[0-9a-f]{8,}\b", "I"), (r"train-", ""),
        (r"[+-]?\d+(\.\d+)?(e-\d+)?", "N"), (r" weight N \(.*\)", ""), (r"N, step.*", "N"), (r" +", " "),
    ]  # fmt: skip
    lines = set()
    for line in text.splitlines():
        for pattern, to in rules:
            line = re.sub(pattern, to, line)
        lines.add(line.strip())
    return lines - {"..."}


@pytest.fixture
def small(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    return trained.copy(tmp_path)


def output(small: Trained, id: str, command: str, rc: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Of the command on a run with fewer steps, whose untrained model says one thing and ends."""
    smaller = {"9f7eae53": id, "step-4": "step-3", "--fork 1": "--fork 0", "train.steps=4": "train.steps=3"}
    for was, now in smaller.items():
        command = command.replace(was, now)
    program, *words = shlex.split(command)
    assert program == "agentrl"
    if words[0] == "train":
        cache = Path(small.run.config["model"]["cache_dir"])
        words = ["train", *small_overrides(small.folder, cache), *words[1:]]
    capsys.readouterr()
    assert main([*words, "--db", small.database]) == rc
    return capsys.readouterr().out


def test_there_is_an_example_of_each_mode() -> None:
    modes = [re.findall(r"--(\w+)", command)[:1] for command, _ in EXAMPLES if "agentrl replay" in command]
    assert modes == [[], ["env"], ["regrade"], ["rescore"], ["fork"], ["step"]]
    assert sum("source=replay" in command for command, _ in EXAMPLES) == 2


OF_STORED = [example for example in EXAMPLES if "--run plain" not in example[0]]
WHY_A_REPLAY = [example for example in EXAMPLES if "--run plain" in example[0]]


@pytest.mark.parametrize(("command", "shown"), OF_STORED, ids=[command for command, _ in OF_STORED])
def test_the_commands_print_what_the_page_shows(
    command: str, shown: str, small: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output(small, small.trajectories(3)[0].id, command, 0, capsys)
    assert shapes(shown) <= shapes(out)


def test_a_step_of_a_replay_is_told_as_the_page_shows(small: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    (made,) = [command for command, _ in EXAMPLES if "name=plain" in command]
    output(small, "", made, 0, capsys)
    ((command, shown),) = WHY_A_REPLAY
    out = output(small, "", command.replace("--step 3", "--step 2"), 0, capsys)
    assert shapes(shown) <= shapes(out)


def test_a_changed_calculator_is_found_as_the_page_shows(
    small: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(small.database) as store:
        demonstration = store.find_trajectories(purpose=Purpose.COLLECT, limit=1)[0].id
    monkeypatch.setattr(calculator, "format_number", lambda value: f"{float(value)}")
    out = output(small, demonstration, "agentrl replay 9f7eae53 --env", 1, capsys)
    assert shapes(CHANGED) == shapes(out)
