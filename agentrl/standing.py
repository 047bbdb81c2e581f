"""Where a run stands: registered at its start, saved in checkpoints, restored after a stop, summed up at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.errors import BadUpdates, ConfigError, FaultShareError, ModelError
from agentrl.evaluation import EvalResult
from agentrl.progress import Summary, draw_curve, plain
from agentrl.train import checkpoint, tiny
from agentrl.wiring import Player, tiny_folder

START: dict[str, Any] = {"version": 0, "last_step": None, "steps_done": 0, "num_planned": 0, "before": []}
"""Where a run stands that has no checkpoint yet."""


async def register(player: Player) -> None:
    """Version 0 of the run: the weights that it starts from, with their parent where this store knows it."""
    run, config = player.run, player.run.config
    is_ours = config.model.path == tiny.NAME and not config.is_hosted and run.command != "sft"
    origin = tiny.origin(tiny_folder(config)) if is_ours else None
    known = {record.id for record in run.store.runs()}
    player.version = await run.store.add_version(
        run.id,
        parent=origin if origin and origin[0] in known else None,
        step=None,
        weights_hash=player.weights_hash(),
        ordinal=0,
    )


def check_unchanged(player: Player) -> None:
    """Weights, environment and template are those that the run began with. Raises ConfigError: results aren't mixed."""
    run = player.run
    versions, played = run.store.versions(run.id), run.store.find_trajectories(run=run.id, limit=1)
    now = {"weights": player.weights_hash(), "environment": run.env_class.version}
    now["chat template"] = player.renderer.template_hash
    was = {"weights": versions[0].weights_hash} if versions else {}
    if played:
        trajectory = run.store.load_trajectory(played[0].id)
        was |= {"environment": trajectory.env_version, "chat template": trajectory.template_hash}
    for name, value in was.items():
        if value != now[name]:
            raise ConfigError(
                f"run {run.id} can't be resumed: its {name} was {value!r} and is {now[name]!r} now; start a new run"
            )


def save(player: Player, before: Sequence[EvalResult] = (), held_out: Sequence[EvalResult] = ()) -> Path:
    """Write a checkpoint: weights in Hugging Face format, optimizer, and where the run stands.

    No generator's state is in it: whatever is random follows from the seed and an ordinal. `before`: the measure of
    the weights that the run started from; `held_out`: that of these.
    """
    run, (policy, trainer) = player.run, player.learner
    state = {
        "run": run.id,
        "version": player.version,
        "last_step": player.last_step,
        "steps_done": player.steps_done,
        "num_planned": player.num_planned_before,
        "before": plain([asdict(result) for result in before]),
        "held_out": next((result.success for result in held_out), None),
    }
    folder = checkpoint.save(run.folder / "checkpoints" / f"step-{player.steps_done}", policy, trainer, state)
    checkpoint.prune(folder.parent, keep_last=run.config.train.keep_last, keep_best=run.config.train.keep_best)
    return folder


@contextmanager
def saved_when_stopped(player: Player, before: Sequence[EvalResult]) -> Iterator[None]:
    """A stop from outside, bad updates or too many faults leave a checkpoint of where the run stands.

    Not other errors: a rank that died can't give its weights. Nor in the middle of a step, after some of its updates:
    such weights are no version, and the checkpoint before them is the one to go on from.
    """
    try:
        yield
    except BaseException as error:
        stops = (asyncio.CancelledError, BadUpdates, FaultShareError)
        found = error.subgroup(stops) if isinstance(error, BaseExceptionGroup) else isinstance(error, stops)
        if found and player.weights_hash() == player.run.store.versions(player.run.id)[player.version].weights_hash:
            save(player, before)
        raise


async def restore(player: Player, folder: Path) -> list[EvalResult]:
    """Put trainer, counters and store back to where a checkpoint was taken; the measure that the run began with.

    `folder` is the model that the run started from where there is no checkpoint yet: then nothing was measured.
    """
    run, (policy, trainer) = player.run, player.learner
    state = checkpoint.load(folder, trainer) if checkpoint.is_checkpoint(folder) else START
    player.version, player.last_step = state["version"], state["last_step"]
    player.steps_done, player.num_planned = state["steps_done"], state["num_planned"]
    player.is_resumed = True
    started_from = run.store.versions(run.id)[player.version].weights_hash
    if policy.weights_hash() != started_from:
        raise ModelError(f"{folder} doesn't hold version {player.version} of run {run.id}: it was changed since")
    await run.store.abandon(run.id, version=player.version, step=player.last_step)
    return [EvalResult(**result) for result in state["before"]]


def finish(player: Player, steps: int, before: Sequence[EvalResult], after: Sequence[EvalResult]) -> Summary:
    """Write summary.json and the curve; the paths in the summary exist."""
    run, config = player.run, player.run.config
    paths = {"folder": run.folder, "database": run.store.location, "metrics": run.metrics.path}
    if player.policy is not None:
        paths["checkpoint"] = run.folder / "checkpoints" / f"step-{steps}"
    if after:
        paths["curve"] = run.folder / "curve.png"
        draw_curve(run.metrics.path, run.folder / "curve.png")
    evals = {f"{result.sampling}_before": result for result in before}
    evals |= {f"{result.sampling}_after": result for result in after}
    success = {name: result.success for name, result in evals.items()}
    summary = Summary(
        run=run.id,
        command=run.command,
        env=config.env.name,
        seed=config.seed,
        seconds=time.monotonic() - run.started,
        steps=steps,
        held_out_before=success.get("greedy_before"),
        held_out_after=success.get("greedy_after"),
        sampled_before=success.get("sampled_before"),
        sampled_after=success.get("sampled_after"),
        num_held_out_tasks=max((result.num_tasks for result in before), default=0),
        evals={name: result.figures() for name, result in evals.items()},
        references=run.references(run.tasks("held_out")) if before else {},
        paths={name: str(path) for name, path in paths.items()},
        phase_seconds=run.phase_seconds,
        missing_images=dict(run.boxes.missing_images),
    )
    summary.write(run.folder)
    return summary
