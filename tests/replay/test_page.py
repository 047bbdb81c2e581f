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
from tests.small import EvenIds

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
    for was, now in {"9f7eae53": id, "step-4": "step-3", "--fork 1": "--fork 0"}.items():
        command = command.replace(was, now)
    program, *words = shlex.split(command)
    assert program == "agentrl"
    capsys.readouterr()
    assert main([*words, "--db", small.database]) == rc
    return capsys.readouterr().out


def test_there_is_an_example_of_each_mode() -> None:
    assert [re.findall(r"--(\w+)", command)[:1] for command, _ in EXAMPLES] == [
        [], ["env"], ["regrade"], ["rescore"], ["fork"], ["step"],
    ]  # fmt: skip


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_commands_print_what_the_page_shows(
    command: str, shown: str, small: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    out = output(small, small.trajectories(3)[0].id, command, 0, capsys)
    assert shapes(shown) <= shapes(out)


def test_a_changed_calculator_is_found_as_the_page_shows(
    small: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(small.database) as store:
        demonstration = store.find_trajectories(purpose=Purpose.COLLECT, limit=1)[0].id
    monkeypatch.setattr(calculator, "format_number", lambda value: f"{float(value)}")
    out = output(small, demonstration, "agentrl replay 9f7eae53 --env", 1, capsys)
    assert shapes(CHANGED) == shapes(out)
