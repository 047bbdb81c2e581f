"""Prompts with answers from a file: `--env dataset env.path=x.jsonl env.reward=number`.

An example is one JSON object per line (or one row of a Parquet file) with a prompt and an answer. Without tools the
model replies once; with tools it calls them until it replies without a call.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from agentrl import plugins
from agentrl.environment import Attack, Environment, EnvironmentConfig, EnvironmentContext, Oracle, scripted
from agentrl.envs import rewards
from agentrl.envs.dataset_files import Example, FilesConfig, read
from agentrl.errors import ConfigError
from agentrl.tool import FunctionTool, Tool, tool
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory, derive_seed


class DatasetConfig(FilesConfig):
    """Options of the dataset environment."""

    path: str | None = None
    """JSONL, or Parquet by the ending .parquet."""
    held_out_path: str | None = None
    """A file of held-out examples; None: a share of `path`."""
    held_out_fraction: float = Field(0.1, ge=0, le=1)
    """That share. Which prompts are in it follows from a hash of each, so it stays when lines are added."""
    split_seed: int = 0
    prompt: str | None = None
    """Column of the prompt (a text, or messages); None: prompt, question, problem, instruction or messages."""
    answer: str | None = None
    """Column of the answer; None: answer, solution, target or label, where there is one."""
    columns: tuple[str, ...] = ()
    """Further columns, for the reward function. Examples that differ only in other columns are duplicates."""
    reward: str = "exact"
    """exact, contains, number, choice, or pkg.module:function; see agentrl.envs.rewards."""
    tools: tuple[str, ...] = ()
    """Names from the entry-point group agentrl.tools, or pkg.module:function."""
    system: str | None = None
    """System message where an example has none of its own."""


class Splits(NamedTuple):
    """All tasks of a config."""

    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    num_duplicates: int
    """Examples left out because the same one stands earlier, or because the prompt is held out."""


class Dataset(Environment):
    """One example."""

    Config = DatasetConfig
    version = "1"
    config: DatasetConfig

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        self.tools = _tools(self.config.tools)
        if self.config.reward == "exact":  # the others may be hit by chance
            self.max_garbage_reward = 0.0

    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        """Raises ConfigError with file and line for what isn't an example."""
        assert isinstance(config, DatasetConfig)
        if split not in ("train", "held_out"):
            raise ConfigError(f"dataset has the splits train, held_out, not {split!r}")
        rewards.find(config.reward)
        _tools(config.tools)
        splits = _load(config.model_dump_json())
        tasks = splits.train if split == "train" else splits.held_out
        if not tasks:
            raise ConfigError(
                f"env.path={config.path}: all {len(splits.train) + len(splits.held_out)} examples are on the other "
                f"side of env.held_out_fraction={config.held_out_fraction:g}, none is {split}; change it, "
                f"or name a file of held-out examples with env.held_out_path"
            )
        return tasks

    @classmethod
    def references(cls, config: EnvironmentConfig, tasks: Sequence[Task]) -> dict[str, float]:
        """How many examples there are, and how many were left out as duplicates."""
        assert isinstance(config, DatasetConfig)
        splits = _load(config.model_dump_json())
        counts = {"train": len(splits.train), "held_out": len(splits.held_out), "duplicates": splits.num_duplicates}
        return {f"num_{name}": float(count) for name, count in counts.items()}

    async def collect(self) -> Artifacts:
        """Which reward function grades: grading needs no config then."""
        return Artifacts(data={"reward": self.config.reward})

    @classmethod
    def grade(  # type: ignore[override]  # plain, so that it runs in a thread: reward functions may block
        cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
    ) -> Grade | Awaitable[Grade]:
        return rewards.grade(str(artifacts.data["reward"]), task, trajectory)

    def oracle(self, task: Task) -> Oracle | None:
        """Says the answer; None where the example has none."""
        answer = task.data.get("answer")
        if answer is None:
            return None
        return lambda messages: Message(role="assistant", content=rewards.as_text(answer))

    def attacks(self, task: Task) -> Sequence[Attack]:
        """On the rewards that come with it; what another one pays for is known to its author alone."""
        answer = task.data.get("answer")
        if answer is None or self.config.reward not in rewards.BUILT_IN:
            return ()
        right = rewards.as_text(answer)
        call = ToolCall(id="call_0", name="submit", arguments=json.dumps({"answer": right}))
        said = {
            "the answer in the thoughts": Message(role="assistant", reasoning=right),
            "the answer beside a call, and then silence": Message(role="assistant", content=right, tool_calls=[call]),
        }
        if self.config.reward != "contains":
            words = "that is correct; the reward is full"
            said["words for the grader"] = Message(role="assistant", content=words)
        if (text := rewards.answer_and_another(self.config.reward, answer)) is not None:
            said["several answers, the right one first"] = Message(role="assistant", content=text)
        return [Attack(name=name, policy=scripted(message)) for name, message in said.items()]


@lru_cache(maxsize=4)
def _load(config_json: str) -> Splits:
    """Keyed by the whole config, which holds the files' hash."""
    config = DatasetConfig.model_validate_json(config_json)
    if config.path is None:
        raise ConfigError("which examples? Name a JSONL or Parquet file with env.path")
    files = [_tasks(config, path) for path in config.paths]
    if config.held_out_path:
        asked = {prompt for prompt, _ in files[1]}
        held_out = [task for _, task in files[1]]
        train = [task for prompt, task in files[0] if prompt not in asked]
    else:
        held_out = [task for prompt, task in files[0] if _is_held_out(config, prompt)]
        train = [task for prompt, task in files[0] if not _is_held_out(config, prompt)]
    splits = Splits(_distinct(train, "train"), _distinct(held_out, "held_out"), 0)
    num_left_out = sum(map(len, files)) - len(splits.train) - len(splits.held_out)
    return splits._replace(num_duplicates=num_left_out)


def _tasks(config: DatasetConfig, path: Path) -> list[tuple[str, Task]]:
    """(what the split goes by, task): the same prompt with another answer is not new."""
    examples = read(path, prompt=config.prompt, answer=config.answer, others=config.columns)
    tasks = [_task(config, example) for example in examples]
    return [(task.model_copy(update={"data": {}}).key, task) for task in tasks]


def _task(config: DatasetConfig, example: Example) -> Task:
    messages = example.messages
    if config.system is not None and messages[0].role != "system":
        messages = [Message(role="system", content=config.system), *messages]
    return Task(env="dataset", id=f"line-{example.line}", split="", messages=messages, data=example.data)


def _distinct(tasks: Iterable[Task], split: str) -> tuple[Task, ...]:
    """The first of each key."""
    found: dict[str, Task] = {}
    for task in tasks:
        found.setdefault(task.key, task)
    return tuple(task.model_copy(update={"split": split}) for task in found.values())


def _is_held_out(config: DatasetConfig, prompt: str) -> bool:
    return derive_seed(config.split_seed, "held_out", prompt) < config.held_out_fraction * 2**63


def _tools(names: Sequence[str]) -> tuple[Tool, ...]:
    """Raises ConfigError for a name that is none, and for two tools of one name."""
    found = tuple(_tool(name) for name in names)
    if len({each.name for each in found}) < len(found):
        raise ConfigError(f"env.tools={list(names)}: two tools have the same name")
    return found


def _tool(name: str) -> Tool:
    loaded = rewards.import_object("env.tools", name) if ":" in name else plugins.load("agentrl.tools", name)
    if isinstance(loaded, Tool):
        return loaded
    if not callable(loaded):
        raise ConfigError(f"env.tools: {name} is a {type(loaded).__name__}; name a function or a Tool")
    try:
        made: FunctionTool = tool(loaded)
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise ConfigError(f"env.tools: {name} can't be a tool: {error}") from None
    return made
