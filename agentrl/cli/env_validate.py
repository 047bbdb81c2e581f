"""`agentrl env validate NAME`: finds the tasks that can't be trusted, and writes the list that leaves them out."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl import plugins
from agentrl.cli.common import run_async
from agentrl.cli.compose import load_config
from agentrl.cli.display import Display
from agentrl.cli.env import chat_of
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.tasks import SPLITS, Exclusion, load_tasks
from agentrl.testing.boxes import CheckBoxes
from agentrl.testing.contract import nobody
from agentrl.testing.episode import Stage
from agentrl.testing.validation import Verdict, validate
from agentrl.types import Task
from agentrl.visible import visible


def validate_tasks(options: argparse.Namespace) -> int:
    """Exit code 0 where every task is fine, or each one that isn't went into the list; else 1."""
    if options.repeat < 1:
        raise ConfigError(f"--repeat {options.repeat}: the oracle has to play at least once")
    config = load_config(options.name, options.overrides)
    tasks = _tasks(config, options.split)
    if options.write is not None and not options.write.absolute().parent.is_dir():
        raise ConfigError(f"--write {options.write}: no folder {options.write.absolute().parent}")
    found = _Found(num_tasks=len(tasks))
    try:
        with Display() as display:
            run_async(_play(config, tasks, options.repeat, display, found))
    finally:
        if options.write is not None:
            found.write(options.write)
        print(found.summary(options.write))
    return 1 if found.unmeasured or (found.reasons and options.write is None) else 0


@dataclass
class _Found:
    """What is known so far; an interrupted validation keeps it."""

    num_tasks: int
    reasons: list[Exclusion] = field(default_factory=list)
    unmeasured: int = 0
    num_done: int = 0
    num_without_oracle: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, verdict: Verdict) -> str | None:
        """The line to print, where something is wrong."""
        task = verdict.task
        self.num_done += 1
        self.num_without_oracle += not verdict.has_oracle
        if verdict.unmeasured is not None:
            self.unmeasured += 1
            return f"? {task.id} ({task.split}): not measured: {verdict.unmeasured}"
        if verdict.reason is None:
            return None
        self.reasons.append(Exclusion(key=task.key, id=task.id, split=task.split, reason=verdict.reason))
        return f"✗ {task.id} ({task.split}): {verdict.reason}"

    def write(self, path: Path) -> None:
        """The list, whole or not at all, in an order that doesn't depend on who was ready first."""
        lines = sorted(one.model_dump_json() + "\n" for one in self.reasons)
        draft = path.with_name(path.name + ".draft")
        draft.write_text("".join(lines), encoding="utf-8")
        os.replace(draft, path)

    def summary(self, written: Path | None) -> str:
        kinds = Counter("flaky" if one.reason.startswith("flaky") else "broken" for one in self.reasons)
        parts = [f"{self.num_done} of {self.num_tasks} tasks in {time.monotonic() - self.started:.0f} s"]
        parts += [f"{kinds['broken']} broken", f"{kinds['flaky']} flaky"]
        if self.unmeasured:
            parts.append(f"{self.unmeasured} not measured: mend the machine and validate again")
        if self.num_without_oracle:
            parts.append(f"{self.num_without_oracle} without an oracle")
        if written is not None:
            parts.append(f"list in {written}, for tasks.exclude={written}")
        return "; ".join(parts)


async def _play(config: RunConfig, tasks: list[Task], repeat: int, display: Display, found: _Found) -> None:
    stage = Stage(
        env_class=plugins.environment(config.env.name),
        options=config.env.options,
        chat=chat_of(config) or nobody,
        boxes=CheckBoxes(config.sandbox),
        timeout_s=config.limits.episode_timeout_s,
        grade_timeout_s=config.limits.grade_timeout_s,
        max_turns=config.limits.max_turns,
    )
    at_once = min(config.sandbox.max_boxes, os.cpu_count() or 1)
    display.phase("tasks", len(tasks))
    async for verdict in validate(stage, tasks, repeat=repeat, at_once=at_once):
        line = found.add(verdict)
        if line is not None:
            display.console.print(visible(line), markup=False)
        display.advance()


def _tasks(config: RunConfig, split: str | None) -> list[Task]:
    """Each task once. Raises ConfigError where there are none; of two splits one may be empty."""
    if split is not None:
        return list(load_tasks(config, split))
    tasks: dict[str, Task] = {}
    for name in SPLITS:
        with suppress(ConfigError):
            tasks |= {task.key: task for task in reversed(load_tasks(config, name))}
    return list(tasks.values()) or list(load_tasks(config, SPLITS[0]))
