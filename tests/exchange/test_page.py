"""docs/export.md: its commands run on a small database and print lines of the form that the page shows."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.rollout.renderer import Renderer
from agentrl.store import StepRow, Store
from agentrl.testing.toy import Toy
from agentrl.types import Message, Purpose
from tests.store.builders import leased, record, task, trajectory, turn

PAGE = (Path(__file__).parent.parent.parent / "docs" / "export.md").read_text()
EXAMPLES = re.findall(r"```console\n\$ (.*?)\n```\n\n```\n(.*?)```", PAGE, re.S)


async def fill(store: Store) -> None:
    """A run called demo with a group whose rewards differ, and a step that used one sample."""
    run = await store.create_run("demo", {"env": {"name": "toy"}, "command": "train"})
    await store.add_version(run, parent=None, step=None, weights_hash="w", ordinal=0)
    group = await store.queue.plan(run, task(), purpose=Purpose.TRAIN, ordinal=0, size=2, version=0)
    lease = await leased(store, group)
    for sample in range(2):
        says = turn(message=Message(role="assistant", content=str(sample)))
        one = trajectory(run, group, sample=sample, turns=[says])
        grade = await record(store, one, lease.generation, reward=float(sample))
    await store.queue.complete(lease)
    for ordinal in range(2):
        step = await store.begin_step(run, ordinal=ordinal, version=0)
        row = StepRow(batch=0, position=0, trajectory=one.id, end_turn=0, grade_id=grade, advantage=1.0)
        await store.record_step(run, step, rows=[row], metrics={}, version_after=None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> Path:
    """A working folder like that of the page."""
    monkeypatch.setattr(plugins, "environment", lambda name: Toy)
    monkeypatch.chdir(tmp_path)
    renderer.tokenizer.save_pretrained(tmp_path / "runs/demo/checkpoints/step-2")  # type: ignore[attr-defined]
    (tmp_path / "runs/demo/checkpoints/step-2/config.json").write_text("{}")
    with Store.open(tmp_path / "runs" / "agentrl.db") as store:
        asyncio.run(fill(store))
    return tmp_path


def shapes(text: str) -> set[str]:
    """Each line without ids and numbers, and the forms of plural; reasons for leaving out differ from run to run."""
    rules = [(r"\b[0-9a-f]{12}\b", "I"), (r"[\d,]*\d", "N"), (r", held_out N", "")]
    lines = set()
    for line in text.splitlines():
        for pattern, to in rules:
            line = re.sub(pattern, to, line)
        lines.add(line)
    return {line for line in lines if "left out" not in line} - {"..."}


def test_the_commands_print_what_the_page_shows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the page's order: what is imported was exported before."""
    assert [shlex.split(command)[1] for command, _ in EXAMPLES] == ["export"] * 4 + ["import"]
    assert [shlex.split(command)[2] for command, _ in EXAMPLES[:4]] == [
        "messages",
        "tokens",
        "preferences",
        "trajectories",
    ]
    for command, shown in EXAMPLES:
        program, *words = shlex.split(command)
        assert program == "agentrl" and main(words) == 0, command
        assert shapes(shown) == shapes(capsys.readouterr().out), command


def test_every_option_and_key_that_the_page_names_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    help_text = ""
    for command in ("export", "import"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        help_text += capsys.readouterr().out
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--env", "--help"}
    assert len(named) > 10 and all(option in help_text for option in named)
