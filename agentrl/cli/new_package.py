"""What `agentrl env new NAME` writes: an installable package with an environment that works at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from agentrl import plugins
from agentrl.errors import ConfigError

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
MAX_NAME_CHARACTERS = 40
IMPORTED = ("Attack", "Environment", "Grade", "Message", "Task")
"""Class names that the written module imports."""

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "agentrl-@NAME@"
version = "0.1.0"
description = "An environment for agentrl"
requires-python = ">=3.11"
dependencies = ["agentrl"]

[project.optional-dependencies]
test = ["pytest>=8.3"]

[project.entry-points."agentrl.envs"]
@NAME@ = "@MODULE@.environment:@CLASS@"

[project.entry-points."agentrl.tools"]
@NAME@-reverse = "@MODULE@.tools:reverse"

[tool.hatch.build.targets.wheel]
packages = ["@MODULE@"]
"""

ENVIRONMENT = '''\
"""Write words backwards: replace tasks, tools and grade by your own."""

from agentrl.environment import Attack, Environment, scripted
from agentrl.types import Grade, Message, Task, ToolCall

from @MODULE@.tools import reverse

WORDS = {"train": ["lamp", "stone", "river", "table", "glass", "paper"], "held_out": ["cloud", "bread", "sugar"]}


class @CLASS@(Environment):
    """Solved by saying the word backwards."""

    version = "1"
    yaml = "configs/@NAME@.yaml"
    max_garbage_reward = 0.0
    tools = (reverse,)

    @classmethod
    def tasks(cls, config, split):
        return [
            Task(env="@NAME@", id=w, split=split, messages=[Message(role="user", content=f"Write backwards: {w}")])
            for w in WORDS[split]
        ]

    @classmethod
    async def grade(cls, task, trajectory, artifacts, ctx):
        said = trajectory.turns[-1].message.text if trajectory.turns else ""
        return Grade(reward=float(task.id[::-1] in said), grader="@NAME@", grader_version=cls.version)

    def oracle(self, task):
        """Plays it right: for the checks, and for `agentrl sft` to imitate."""

        def reply(messages):
            if messages[-1].role == "tool":
                return Message(role="assistant", content=messages[-1].text)
            call = ToolCall(id="call_0", name="reverse", arguments=f'{{"text": "{task.id}"}}')
            return Message(role="assistant", tool_calls=[call])

        return reply

    def attacks(self, task):
        """What must not pay: for the checks."""
        return [Attack(name="the word as it was", policy=scripted(Message(role="assistant", content=task.id)))]
'''

TOOLS = '''\
"""What the model can call: typed functions with a docstring."""

from agentrl.tool import tool


@tool
def reverse(text: str) -> str:
    """Write a text backwards."""
    return text[::-1]
'''

YAML = """\
# What fits this environment: any key of `agentrl train --env @NAME@ --cfg`. The command line wins.
limits:
  max_turns: 4
  max_turn_tokens: 64
  max_episode_tokens: 256
  max_observation_tokens: 64
"""

TEST = '''\
"""The environment keeps the contract, and is found by its name."""

from agentrl import plugins
from agentrl.testing.contract import verify

from @MODULE@.environment import @CLASS@


def test_contract():
    verify(@CLASS@)


def test_it_is_registered():
    assert plugins.environment("@NAME@") is @CLASS@
'''

README = """\
# agentrl-@NAME@

An environment for agentrl.

    pip install -e .
    agentrl env check @NAME@
    agentrl train --env @NAME@
    pytest                        # after pip install -e '.[test]'

`@MODULE@/environment.py` holds tasks, grade and oracle; `@MODULE@/tools.py` the tools; `@MODULE@/configs/@NAME@.yaml`
the settings.
"""


def write_package(name: str, folder: Path) -> Iterator[Path]:
    """Write the package into a new folder; yields the files as they are written.

    Raises ConfigError for a name that can't be one or is taken, and for a folder that is there: nothing is
    overwritten.
    """
    _check_name(name)
    texts = {path: _filled(text, name) for path, text in _files(name).items()}
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} is there already; choose another --path, or remove it") from None
    except OSError as error:
        raise ConfigError(f"can't make {folder}: {error.strerror}; choose another --path") from None
    for path, text in texts.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        yield target


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS:
        raise ConfigError(
            f"{name!r} can't be a name: small letters and digits, with single - or _ between, at most "
            f"{MAX_NAME_CHARACTERS} characters, e.g. word-puzzles"
        )
    if name in plugins.names("agentrl.envs"):
        raise ConfigError(f"an environment {name!r} is installed already; choose another name")


def _files(name: str) -> dict[str, str]:
    module = _module(name)
    return {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{module}/__init__.py": '"""An environment for agentrl."""\n',
        f"{module}/environment.py": ENVIRONMENT,
        f"{module}/tools.py": TOOLS,
        f"{module}/configs/{name}.yaml": YAML,
        "tests/test_contract.py": TEST,
    }


def _filled(text: str, name: str) -> str:
    class_name = "".join(word.capitalize() for word in re.split("[-_]", name))
    class_name += "Env" if class_name in IMPORTED else ""
    return text.replace("@NAME@", name).replace("@MODULE@", _module(name)).replace("@CLASS@", class_name)


def _module(name: str) -> str:
    return f"agentrl_{name.replace('-', '_')}"
