"""docs/swe_bench.md: its commands run, its keys are there, and it leads to the other pages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.cli.compose import load_config
from agentrl.envs.swe_bench.environment import SweBenchConfig
from tests.envs.swe_bench.small import FILES, swe_task, write

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "swe_bench.md").read_text()
COMMANDS = [line.removeprefix("$ agentrl ") for line in re.findall(r"^\$ .*", PAGE, re.M)]
SMALLER = [
    "sft.demonstrations=1", "sft.steps=1", "sft.batch_size=1", "sft.optimizer=adamw",
    "eval.tasks=1", "eval.sampled=false", "algorithm.group_size=2",
    "algorithm.groups_per_step=1", "train.steps=1", "limits.max_turn_tokens=4", "limits.max_turns=1",
    "runs_dir=runs", "model.cache_dir=cache",
]  # fmt: skip


def test_it_trains_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "sums", FILES)
    tasks = [swe_task(folder, id=f"sums-{number}").model_dump_json() + "\n" for number in range(8)]
    (tmp_path / "tasks.jsonl").write_text("".join(tasks))
    monkeypatch.chdir(tmp_path)
    (command,) = [command for command in COMMANDS if command.startswith("train") and "env.path" in command]
    assert main([*shlex.split(command), *SMALLER]) == 0


def test_there_are_commands_for_all_and_their_overrides_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").touch()
    assert {" ".join(command.split()[:2]) for command in COMMANDS} == {"train --env", "env check", "env validate"}
    for command in COMMANDS:
        load_config("swe_bench", [word for word in shlex.split(command) if "=" in word])


def test_its_keys_are_those_of_the_options() -> None:
    keys = re.findall(r"`env\.(\w+)`", "\n".join(re.findall(r"^\| `env\..*? \|", PAGE, re.M)))
    assert set(keys) == set(SweBenchConfig.model_fields)


def test_it_leads_to_pages_that_are_there_and_is_found() -> None:
    links = set(re.findall(r"\]\((\w+\.md)\)", PAGE))
    assert links >= {"swe_bench_data.md", "swe_bench_logs.md", "limits.md"}
    assert all((DOCS / link).is_file() for link in links)
    for page in (DOCS / "environments-included.md", DOCS.parent / "README.md"):
        assert "swe_bench.md)" in page.read_text()
