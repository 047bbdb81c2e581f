"""docs/store.md: its commands exist, and what it shows of `agentrl why` is what that prints of a real small run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.progress import Silent
from agentrl.run import train
from agentrl.store import Store
from tests.small import EvenIds, small_config

PAGE = (Path(__file__).parent.parent / "docs" / "store.md").read_text()


def labels(text: str) -> list[str]:
    """The first word of each line."""
    return [line.split()[0] for line in text.splitlines()]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "environment", lambda name: EvenIds)
        asyncio.run(train(small_config(folder, folder / "cache", "train.learning_rate=1e-3"), Silent()))
    return folder / "agentrl.db"


def test_each_command_of_the_page_runs(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(database) as store:
        run = store.runs()[0].id
        trajectory = store.trajectories_of(run, 0)[0]
    listed = re.findall(r"^agentrl (.+?)  +\S", PAGE, re.M)
    assert len(listed) >= 10
    for command in listed:
        words = command.replace("TRAJECTORY", trajectory).replace("RUN", run).replace("N", "0").split()
        if words[0] not in ("train", "eval", "view"):  # resuming has tests of its own, and so has the viewer's server
            assert main([*words, "--db", str(database)]) == 0, command
            assert capsys.readouterr().out


def test_what_is_shown_of_why_is_what_it_prints(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [shown] = re.findall(r"^\$ agentrl why \w+\n(.*?)^```", PAGE, re.M | re.S)
    with Store.open(database) as store:
        rows = store.rows_of(store.runs()[0].id, 0)
    moved = next(row for row in rows if row.ratio_max is not None and row.advantage)
    assert main(["why", moved.trajectory, "--db", str(database)]) == 0
    printed = capsys.readouterr().out
    assert [label for label in labels(shown) if label not in ("parts", "output")] == labels(printed)
    assert "reward" in printed and f"advantage {moved.advantage:+.3f}" in printed
