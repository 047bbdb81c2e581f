"""docs/hosted-models.md: its scripted endpoint serves, its commands run against it and print what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.cli import main
from tests.small import SMALL

PAGE = (Path(__file__).parent.parent / "docs" / "hosted-models.md").read_text()
COMMANDS = [line.removeprefix("$ ") for line in re.findall(r"```console\n(.*?)```", PAGE, re.S)[0].splitlines()]
EVALUATION, TRANSCRIPT = re.findall(r"```\n(.*?)```", PAGE, re.S)[-2:]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of the page's endpoint, on a port that is free."""
    program, *words = shlex.split(COMMANDS[0])
    assert program == "python" and words[:2] == ["-m", "agentrl.testing.chat"]
    words[words.index("--port") + 1] = "0"
    server = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    with server:
        yield server.stdout.readline().strip()
        server.stdin.close()


@pytest.mark.parametrize(("command", "shown"), [(COMMANDS[1], EVALUATION), (COMMANDS[2], TRANSCRIPT)])
def test_the_commands_print_what_the_page_shows(
    command: str, shown: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command.replace("http://127.0.0.1:8123/v1", url))
    assert words[0] == "agentrl" and url in command.replace("http://127.0.0.1:8123/v1", url)
    assert main([*words[1:], f"runs_dir={tmp_path}"]) == 0
    assert shown in capsys.readouterr().out


def test_the_provider_in_the_example_is_asked_the_same_way(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"^agentrl eval .*$", PAGE, re.M)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    words = shlex.split(example.replace("https://api.openai.com/v1", url).replace("engine.model=…", "engine.model=m"))
    assert main([*words[1:], *SMALL, f"runs_dir={tmp_path}"]) == 0
    assert "held-out success (greedy)" in capsys.readouterr().out
