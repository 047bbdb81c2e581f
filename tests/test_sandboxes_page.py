"""docs/sandboxes.md: its commands run, its environment works, its keys and their defaults are right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.config_sandbox import SandboxConfig
from agentrl.testing.contract import verify
from agentrl.types import Message, ToolCall

PAGE = (Path(__file__).parent.parent / "docs" / "sandboxes.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


COMMANDS = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    if words[:2] == ["sandbox", "check"]:  # all of it: tests/sandboxes
        words += ["--only", "network", "--only", "exit_codes"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "bubblewrap" in out or "passed" in out


def test_the_environment_of_the_page_keeps_the_contract() -> None:
    space: dict[str, type] = {}
    exec(blocks("python")[0], space)

    class Solved(space["Counting"]):  # type: ignore[misc,name-defined]
        def oracle(self, task):  # type: ignore[no-untyped-def]
            def reply(messages: list[Message]) -> Message:
                if messages[-1].role == "tool":
                    return Message(role="assistant", content="done")
                command = '{"command": "wc -l < input.txt > answer.txt"}'
                return Message(role="assistant", tool_calls=[ToolCall(id="0", name="run", arguments=command)])

            return reply

    verify(Solved, num_tasks=1, timeout_s=30, sandbox=SandboxConfig(start_timeout_s=240))


def test_every_key_is_on_the_page_with_its_default() -> None:
    table = PAGE.partition("## Settings")[2].partition("\n##")[0]
    rows = dict(re.findall(r"^\| `sandbox\.(\w+)` \| (.*) \|$", table, re.M))
    fields = {name: field.default for name, field in SandboxConfig.model_fields.items() if name != "options"}
    assert set(rows) | {"backend"} == set(fields)
    for name, text in rows.items():
        if fields[name] is not None:
            assert f"({fields[name]:g})" in text, name
