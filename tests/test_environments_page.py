"""docs/environments.md: its commands run in a fresh environment, and its environments keep the contract."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from agentrl.environment import Environment
from agentrl.testing.contract import CHECKS, verify
from agentrl.tool import IsolatedTool
from agentrl.types import Message
from tests.installed import ROOT, FreshVenv

PAGE = (ROOT / "docs" / "environments.md").read_text()
SMALL = [
    "sft.demonstrations=8", "sft.steps=2", "sft.batch_size=8", "eval.tasks=2", "eval.sampled=false",
    "algorithm.group_size=4", "algorithm.groups_per_step=2", "train.steps=1", "model.cache_dir=cache",
]  # fmt: skip


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_the_commands_run_in_a_fresh_environment(tmp_path: Path) -> None:
    fresh = FreshVenv(tmp_path)
    commands = [shlex.split(line.removeprefix("$ ")) for block in blocks("console") for line in block.splitlines()]
    assert [words[:3] for words in commands] == [
        ["agentrl", "env", "new"], ["pip", "install", "-e"], ["agentrl", "env", "check"], ["agentrl", "train", "--env"],
    ]  # fmt: skip
    for program, *words in commands:
        if program == "pip":
            fresh.pip_install(*words[1:])
            continue
        done = fresh.agentrl(*words, *(SMALL if words[0] == "train" else []))
        assert done.returncode == 0, done.stdout + done.stderr
    assert list((fresh.place / "runs").glob("*-train-word-puzzles/checkpoints/step-1"))


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """The page's Python, as modules that a child process can import too."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for number, code in enumerate(blocks("python")):
        names.append(f"page_block_{number}")
        (tmp_path / f"{names[-1]}.py").write_text(code)
    yield [importlib.import_module(name) for name in names]
    for name in names:
        del sys.modules[name]


def test_its_environments_keep_the_contract_and_its_tool_is_isolated(modules: list[ModuleType]) -> None:
    found = [value for module in modules for value in vars(module).values()]
    environments = [
        value
        for value in found
        if isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    ]
    assert [env.__name__ for env in environments] == ["Backwards", "Support"]

    async def chat(agent: str, messages: list[Message]) -> Message:
        return Message(role="assistant", content="yes" if agent == "judge" else "DONE")

    for env in environments:
        verify(env, chat=chat)
    assert [value.name for value in found if isinstance(value, IsolatedTool)] == ["solve"]


def test_its_yaml_is_yaml_and_its_table_names_every_check() -> None:
    (text,) = blocks("yaml")
    assert yaml.safe_load(text)["limits"]["max_turns"] == 4
    for name in [*CHECKS, "nothing is left behind"]:
        assert f"| {name} |" in PAGE
