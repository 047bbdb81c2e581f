"""The smallest configs that run everything, and a calculator whose rewards differ before anything is learnt."""

from __future__ import annotations

from pathlib import Path

from agentrl.cli.compose import load_config
from agentrl.config import RunConfig
from agentrl.environment import EnvironmentContext
from agentrl.envs.calculator import Calculator
from agentrl.types import Artifacts, Grade, Task, Trajectory

SMALL = [
    "env.train_tasks=64", "env.held_out_tasks=16", "sft.demonstrations=24", "sft.steps=2", "sft.batch_size=8",
    "sft.optimizer=adamw",  # a step of Muon takes seconds on a CPU
    "eval.tasks=5", "algorithm.group_size=4", "algorithm.groups_per_step=2", "train.steps=2",
    "limits.max_turn_tokens=12", "limits.max_turns=2",
]  # fmt: skip


def small_overrides(folder: Path, cache: Path, *overrides: str) -> list[str]:
    return [*SMALL, f"runs_dir={folder}", f"model.cache_dir={cache}", *overrides]


def small_config(folder: Path, cache: Path, *overrides: str) -> RunConfig:
    return load_config("calculator", small_overrides(folder, cache, *overrides))


class EvenIds(Calculator):
    """Pays the share of even ids: an untrained model's samples differ in it."""

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        ids = [i for turn in trajectory.turns for i in turn.sampled_ids]
        return Grade(reward=sum(i % 2 == 0 for i in ids) / len(ids), grader="even", grader_version="1")
