"""The README's commands run, its environment plays, its query answers, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import sqlite3
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.environment import Environment
from agentrl.rollout.renderer import Renderer
from tests.rollout.loops import TextClient, call, make_loop, play
from tests.small import small_overrides

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")


def test_there_are_commands_to_run() -> None:
    assert "make train" in COMMANDS and len(COMMANDS) >= 6


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("agentrl")])
def test_each_command_runs(command: str, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    if words[0] == "runs":
        words += ["--db", str(place[0] / "agentrl.db")]
    elif words[0] not in ("env", "doctor"):  # the same command, only smaller
        words = [words[0], *words[1:], *small_overrides(*place)]
    assert main(words) == 0
    assert capsys.readouterr().out


def test_make_knows_its_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.M), command


def test_the_query_runs_on_a_database_of_ours(place: tuple[Path, Path]) -> None:
    main(["rollout", "--env", "calculator", *small_overrides(*place)])
    (query,) = blocks("sql")
    with sqlite3.connect(place[0] / "agentrl.db") as database:
        cursor = database.execute(query)
        assert [column[0] for column in cursor.description] == [
            "turn", "text", "arguments", "status", "result", "version", "num_ids", "step_id", "advantage",
        ]  # fmt: skip


async def test_the_environment_plays(renderer: Renderer) -> None:
    (code,) = blocks("python")
    assert len(code.splitlines()) <= 26
    namespace: dict[str, object] = {}
    exec(code, namespace)
    env = namespace["Backwards"]
    assert isinstance(env, type) and issubclass(env, Environment)
    client = TextClient(renderer, call("reverse", '{"text": "lamp"}'), "It is pmal.")
    sample = await play(make_loop(renderer, client, env=env, config=env.Config()))  # type: ignore[arg-type]
    assert sample.reward == 1.0 and sample.trajectory.turns[0].tool_calls[0].result == "pmal"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"
