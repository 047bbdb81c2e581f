"""`agentrl sandbox list` and `check`."""

from __future__ import annotations

import pytest

from agentrl.cli import main


def test_list_shows_the_sandboxes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith(" ok")][:1] == ["bubblewrap"], lines


def test_check_prints_a_line_per_check_and_what_is_not_enforced(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sandbox", "check", "local", "sandbox.options.unsafe=true", "--only", "exit_codes", "--only", "network"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "not enforced here: all of it" in out and "no escape is tried" in out
    assert "✓ exit_codes" in out and "network" not in out and "1 passed, 0 failed, 0 not shown here" in out


def test_a_sandbox_that_cannot_start_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "check", "local"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "use bubblewrap or docker" in line and "sandbox.options.unsafe=true" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["locl"], "known: local"),
        (["local", "unsaf=true"], "has no option 'unsaf'; it has: unsafe"),
        (["local", "unsafe=true", "--only", "network_"], "--only network_: no such check"),
    ],
)
def test_what_is_misspelt_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "check", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["sandbox.options.mirrr=x", "image"], ["sandbox.options.mirror=x"]])
def test_a_pull_that_is_misspelt_is_not_called_a_check(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "pull", "docker", *words]) == 2
    said = capsys.readouterr().err
    assert "agentrl sandbox" in said and "check" not in said
