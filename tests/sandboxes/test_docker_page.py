"""docs/docker.md: its keys and their defaults are right, and its commands are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.sandboxes.docker.leftovers import labels
from agentrl.sandboxes.docker.options import DockerOptions

PAGE = (Path(__file__).parents[2] / "docs" / "docker.md").read_text()


def test_every_option_is_on_the_page_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `sandbox\.options\.(\w+)` \| (.*) \|$", PAGE, re.M))
    assert set(rows) == set(DockerOptions.model_fields)
    for name, field in DockerOptions.model_fields.items():
        if field.default is not None:
            shown = str(field.default).lower() if isinstance(field.default, bool) else f"{field.default:g}"
            assert f"({shown}" in rows[name], name


def test_every_label_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE for name in labels("run", 1.0))


@pytest.mark.parametrize("command", re.findall(r"^\$ agentrl (\w+ \w+)", PAGE, re.M))
def test_each_command_is_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert f"agentrl {command}" in capsys.readouterr().out
