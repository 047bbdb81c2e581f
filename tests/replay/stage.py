"""Trajectories recorded in a real store by the real loop, for environments that later behave otherwise."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.config import RunConfig
from agentrl.environment import Environment
from agentrl.rollout.chat import ChatEndpoint
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.types import Purpose, Trajectory
from tests.rollout.loops import TextClient
from tests.store.builders import leased


@dataclass
class Stage:
    """A database, and a folder with a tokenizer."""

    folder: Path
    patch: pytest.MonkeyPatch

    @property
    def database(self) -> str:
        return str(self.folder / "agentrl.db")

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def use(self, env: type[Environment]) -> None:
        """What is installed from now on."""
        self.patch.setattr(plugins, "environment", lambda name: env)

    def record(
        self,
        *texts: str | Exception,
        env: type[Environment] = Toy,
        endpoint: ChatEndpoint | None = None,
        window: int = 2000,
        **config: Any,
    ) -> list[Trajectory]:
        """All attempts at one sample whose replies are `texts`, oldest first."""
        self.use(env)
        return asyncio.run(self._record(texts, env, endpoint, window, config))

    async def _record(
        self, texts: Any, env: type[Environment], endpoint: ChatEndpoint | None, window: int, given: dict[str, Any]
    ) -> list[Trajectory]:
        env_options = {"name": "toy", **given.pop("options", {})}
        values = {"env": env_options, "runs_dir": str(self.folder / "runs")} | given
        config = RunConfig.model_validate(values)
        renderer = Renderer.from_pretrained(str(self.model), mode=config.rollout.renderer_mode)
        client = TextClient(renderer, *texts)
        with Store.open(self.database) as store:
            stored = config.public() | {"command": "rollout", "model_folder": str(self.model)}
            folder = str(self.folder / "runs" / "toy")
            run = await store.create_run("toy", stored, folder=folder, packages={"acme-toys": "1.2"})
            await store.add_version(run, parent=None, step=None, weights_hash="w", ordinal=0)
            task = env.tasks(config.env.options, "train")[0]
            group = await store.queue.plan(run, task, purpose=Purpose.COLLECT, ordinal=3, size=1, version=0)
            lease = await leased(store, group)
            loop = AgentLoop(
                env_class=env, env_config=config.env.options, sampler=lambda env, trajectory: EngineSampler(client),
                renderer=renderer, recorder=store.recorder, limits=config.limits, sampling=config.sampling,
                window=window, chat=endpoint,
            )  # fmt: skip
            await RolloutPool(loop, config.rollout.model_copy(update={"max_fault_share": 1.0}), 7).run(
                [store.load_group(group)]
            )
            await store.queue.complete(lease)
            found = store.find_trajectories(run=run)
            return sorted((store.load_trajectory(one.id) for one in found), key=lambda one: one.attempt)


def replay(stage: Stage, *words: str) -> int:
    """The exit code of `agentrl replay`."""
    return main(["replay", *words, "--db", stage.database])
