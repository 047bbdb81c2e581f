"""Small databases, and what an export of them holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from agentrl.batch.rows import Row, build_rows
from agentrl.environment import Environment
from agentrl.exchange.importing import Imported, bring_in
from agentrl.rollout.loop import RolloutSpec
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ScriptedSampler
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.types import Message, Sample, Trajectory
from tests.rollout.loops import make_loop
from tests.store.builders import record, start_run

Json = dict[str, Any]


def stored(path: Path, *trajectories: Trajectory, reward: float | None = 1.0) -> str:
    """The path of a database with these trajectories, of one run."""

    async def write() -> None:
        with Store.open(path) as store:
            run = await start_run(store)
            for one in trajectories:
                one.run = run
                await record(store, one, reward=reward)

    asyncio.run(write())
    return str(path)


def demonstrated(path: Path, renderer: Renderer, env: type[Environment] = Toy, **limits: Any) -> str:
    """The path of a database in which the environment's oracle has played its train tasks."""

    async def write() -> None:
        with Store.open(path) as store:
            run = await store.create_run("toy", {"env": {"name": "toy"}, "command": "sft"})

            def sampler(own: Environment, trajectory: Trajectory) -> ScriptedSampler:
                oracle = own.oracle(trajectory.task)
                assert oracle is not None
                return ScriptedSampler(oracle, renderer)

            loop = make_loop(renderer, None, store.recorder, env=env, sampler=sampler, **limits)  # type: ignore[arg-type]
            for place, task in enumerate(env.tasks(loop.env_config, "train")):
                await loop.run(RolloutSpec(run=run, run_seed=0, task=task, group=None, ordinal=place))

    asyncio.run(write())
    return str(path)


def lines(path: Path) -> list[Json]:
    """The examples of a JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, *examples: Any) -> Path:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(one) + "\n" for one in examples), encoding="utf-8")
    return path


def imported(database: str | Path, source: Path, renderer: Renderer | None = None, **given: Any) -> Imported:
    """Through the public function; the model's folder is asked for nothing but its tokenizer."""

    async def bring() -> Imported:
        with Store.open(database) as store:
            return await bring_in(store, source, renderer=renderer, **given)

    return asyncio.run(bring())


def samples(database: str | Path) -> list[Sample]:
    """All that are stored, the oldest first."""
    with Store.open(database) as store:
        return [store.load_sample(one.id) for one in reversed(store.find_trajectories())]


def rows(database: str | Path, *, for_sft: bool = True) -> list[Row]:
    return [row for sample in samples(database) for row in build_rows(sample, for_sft=for_sft)]


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str, **changes: Any) -> Message:
    return Message(role="assistant", content=text, **changes)
