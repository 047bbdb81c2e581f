"""A stored trajectory, and what it takes to do something with it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from agentrl import plugins
from agentrl.config import RunConfig, fault_text
from agentrl.environment import Environment
from agentrl.errors import PluginError, ReplayError, StoreError
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.unrendered import Unrendered
from agentrl.store.records import RunRecord
from agentrl.store.store import Store
from agentrl.types import Sample, Trajectory


@dataclass(kw_only=True, slots=True, frozen=True)
class Recorded:
    """A finished trajectory with the run that it comes from."""

    sample: Sample
    """As stored, with its latest grade."""
    trajectory: Trajectory
    """With what a fork copied as it was sampled where it comes from."""
    run: RunRecord
    config: RunConfig
    env_class: type[Environment]
    warnings: list[str] = field(default_factory=list)
    """What is another version now."""


def find(store: Store, id: str) -> str:
    """The whole id of a trajectory. Raises ReplayError with near ids."""
    try:
        return store.resolve("trajectory", id)
    except StoreError as error:
        raise ReplayError(str(error)) from None


def find_run(store: Store, name: str) -> RunRecord:
    """The run with this folder name, or whose id begins so. Raises ReplayError with near ids."""
    try:
        return store.find_run(name)
    except StoreError as error:
        raise ReplayError(str(error)) from None


def load(store: Store, id: str) -> Recorded:
    """Raises ReplayError where the trajectory is unknown or not finished, or its environment is gone."""
    sample = store.load_sample(find(store, id))
    trajectory = sample.trajectory
    if trajectory.stop_reason is None:
        raise ReplayError(f"trajectory {trajectory.id} has no ending yet: its run plays it still, or has died")
    run = store.find_run(trajectory.run)
    config = config_of(run, store.target)
    env_class = plugins.environment(config.env.name)
    return Recorded(
        sample=sample,
        trajectory=unforked(store, trajectory),
        run=run,
        config=config,
        env_class=env_class,
        warnings=_changes(trajectory, run, config, env_class),
    )


def config_of(run: RunRecord, database: str) -> RunConfig:
    """The run's config. Raises ReplayError where its environment isn't there any more, or has other options now."""
    if run.config.get("command") == "import":
        raise ReplayError(f"run {run.id} was imported from {run.config['file']}: no environment played it here")
    with fitting(run):
        return RunConfig.of_stored(run.config, database, for_replay=True)


@contextmanager
def fitting(run: RunRecord) -> Iterator[None]:
    """While a part of the run's config is read. Raises ReplayError where what is installed now has other keys."""
    try:
        yield
    except PluginError as error:
        raise ReplayError(f"{error}. Run {run.id} was made with {run.made_with}") from None
    except ValidationError as error:
        raise ReplayError(
            f"the config of run {run.id} doesn't fit what is installed now: {fault_text(error)}. "
            f"It was made with {run.made_with}"
        ) from None


def unforked(store: Store, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the turns that it copied as they were sampled where it was forked from."""
    if trajectory.forked_from is None:
        return trajectory
    id, turn = trajectory.forked_from
    copied = unforked(store, store.load_trajectory(id)).turns[: min(turn, len(trajectory.turns))]
    return replace(trajectory, turns=[*copied, *trajectory.turns[len(copied) :]])


def renderer_of(recorded: Recorded, model: str | None) -> Renderer | Unrendered:
    """What the run rendered with; `model`: another folder with its tokenizer. Raises ReplayError where that is gone."""
    if recorded.trajectory.renderer_mode == Unrendered.mode:
        return Unrendered()
    folder = model or recorded.run.config["model_folder"]
    if not Path(folder).is_dir():
        raise ReplayError(
            f"model folder {folder} is gone, and with it the tokenizer; run {recorded.run.id} was made with "
            f"{recorded.run.made_with}. Name another copy of the folder by --model"
        )
    config = recorded.config
    return Renderer.from_pretrained(folder, mode=config.rollout.renderer_mode, tool_parser=config.model.tool_parser)


def _changes(trajectory: Trajectory, run: RunRecord, config: RunConfig, env_class: type[Environment]) -> list[str]:
    now = plugins.made_by("agentrl.envs", config.env.name)
    made = {name: version for name, version in run.packages.items() if name in now}
    changes = [f"{name} {was} made it, {now[name]} is installed" for name, was in made.items() if was != now[name]]
    if trajectory.env_version != env_class.version:
        changes.append(f"environment {config.env.name} was version {trajectory.env_version}, now {env_class.version}")
    return changes
