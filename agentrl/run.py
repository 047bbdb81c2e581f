"""The page on which a run can be read.

    train:  base model ─▶ [ collect ─▶ learn ─▶ publish ] × steps ─▶ checkpoint, summary, curve
                            ▲ groups of rollouts │ Rows, advantages, update │ proved weights
    eval, rollout:          collect only
    sft:    scripted play through the same loop ─▶ imitate ─▶ checkpoint

The store lies between collect and learn: what is trained on is read back from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from agentrl.batch.advantages import assign_advantages
from agentrl.batch.rows import Row, build_rows
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.progress import EvalResult, Summary, Watcher, draw_curve, phase, plain, rollout_metrics, summarize
from agentrl.rollout.pool import RolloutPool
from agentrl.run_folder import Run, heartbeat, lease_seconds, open_run, reopen_run
from agentrl.store.records import StepRow
from agentrl.sync.base import Canary
from agentrl.train import checkpoint, tiny
from agentrl.train.gate import check_logprobs
from agentrl.train.policy import Policy
from agentrl.train.report import RowReport, StepReport
from agentrl.train.trainer import Trainer
from agentrl.types import Group, Purpose, Task, derive_seed
from agentrl.wiring import (
    Player,
    Probe,
    check_model_path,
    demonstrator_sampler,
    devices_of,
    endless,
    load_renderer,
    make_pool,
    open_learner,
    open_player,
    open_policy,
    random_tiny,
    tiny_folder,
)

# ---------------------------------------------------------------------------------------------------- commands


async def train(config: RunConfig, watcher: Watcher) -> Summary:
    """Train; returns what summary.json holds."""
    if config.engine.url is not None:
        raise ConfigError("engine.url: weights can't be sent to a running server; leave it out to train")
    devices_of(config.train)
    base = await base_model(config, watcher)
    async with open_run(config, "train", watcher, base) as run, open_learner(run, base) as player:
        await register(player)
        await prove(player)
        before = await evaluate(player, ordinal=0)
        return await train_from(player, 0, before)


async def resume(config: RunConfig, watcher: Watcher, run_id: str) -> Summary:
    """Go on from the last complete checkpoint of a run; what came after it is abandoned."""
    async with reopen_run(config, watcher, run_id) as (run, folder), open_learner(run, folder) as player:
        state = checkpoint.load(folder, player.learner[1])
        player.version, player.num_planned = state["version"], state["num_planned"]
        await run.store.abandon(run.id, version=player.version, step=state["last_step"])
        await prove(player)
        return await train_from(player, state["steps_done"], [EvalResult(**result) for result in state["before"]])


async def train_from(player: Player, steps_done: int, before: Sequence[EvalResult]) -> Summary:
    """The steps that are left, the last measure, the end."""
    run, config = player.run, player.run.config
    size = config.algorithm.groups_per_step
    tasks = islice(endless(run.tasks("train"), config.seed), steps_done * size, None)
    for ordinal in range(steps_done, config.train.steps):
        await step(player, ordinal, list(islice(tasks, size)))
        done = ordinal + 1
        if _is_due(done, config.eval.every) and done < config.train.steps:
            await evaluate(player, ordinal=done)
        if _is_due(done, config.train.checkpoint_every):
            save(player, done, before)
    after = await evaluate(player, ordinal=config.train.steps)
    save(player, config.train.steps, before)
    return finish(player, config.train.steps, before, after)


async def evaluate_model(config: RunConfig, watcher: Watcher) -> Summary:
    """`agentrl eval`: the held-out measure of a model, stored like any other rollouts."""
    base = await base_model(config, watcher)
    async with open_run(config, "eval", watcher, base) as run, open_player(run, base) as player:
        await register(player)
        return finish(player, 0, await evaluate(player, ordinal=0), [])


async def rollout(config: RunConfig, watcher: Watcher, num_tasks: int, split: str) -> tuple[Summary, list[Group]]:
    """`agentrl rollout`: play a few tasks."""
    base = await base_model(config, watcher)
    async with open_run(config, "rollout", watcher, base) as run, open_player(run, base) as player:
        await register(player)
        tasks = list(islice(endless(run.tasks(split), config.seed), num_tasks))
        groups = await collect(player, player.pool(config.sampling), tasks, purpose=Purpose.COLLECT, size=1)
        return finish(player, 0, [], []), groups


async def sft(config: RunConfig, watcher: Watcher) -> Summary:
    """`agentrl sft`: warm start on demonstrations. The tiny model starts from random weights and is cached."""
    devices_of(config.train)
    async with open_run(config, "sft", watcher) as run:
        is_tiny = config.model.path == tiny.NAME
        start = random_tiny(run) if is_tiny else Path(config.model.path)
        with open_policy(run, start) as policy:
            player = Player(run=run, renderer=load_renderer(run, start), window=tiny.MAX_POSITIONS)
            player.policy = policy
            player.trainer = Trainer(policy, config.sft.train_config(config.train), config.algorithm)
            check_logprobs(policy, first_prompt(player))
            await register(player)
            await imitate(player)
            folder = save(player, config.sft.steps)
            if is_tiny:
                tiny.keep(folder, tiny_folder(config), run.id, player.version)
            return finish(player, config.sft.steps, [], [])


# ------------------------------------------------------------------------------------------------- the RL step


async def step(player: Player, ordinal: int, tasks: Sequence[Task]) -> None:
    """Collect, learn, publish; one record in the store and one in the metrics."""
    run, config = player.run, player.run.config
    seconds: dict[str, float] = {}
    with phase(seconds, "rollout"):
        pool = player.pool(config.sampling)
        groups = await collect(player, pool, tasks, purpose=Purpose.TRAIN, size=config.algorithm.group_size)
    with phase(seconds, "train"):
        metrics, probe = await learn(player, ordinal, groups)
    with phase(seconds, "sync"):
        metrics |= {} if probe is None else await publish(player, probe)
    run.add_seconds(seconds)
    rollouts = rollout_metrics(groups, seconds["rollout"])
    run.event("step", ordinal=ordinal, version=player.version, **metrics, **rollouts, seconds=seconds)


async def collect(
    player: Player, pool: RolloutPool, tasks: Sequence[Task], *, purpose: Purpose, size: int
) -> list[Group]:
    """Plan one group per task, play them, and read them back from the store."""
    queue, run = player.run.store.queue, player.run
    ordinals = range(player.num_planned, player.num_planned + len(tasks))
    player.num_planned = ordinals.stop
    plan = [
        queue.plan(run.id, task, purpose=purpose, ordinal=ordinal, size=size, version=player.version)
        for task, ordinal in zip(tasks, ordinals, strict=True)
    ]
    ids = await asyncio.gather(*plan)
    leases = await queue.lease(run.id, lease_seconds(run.config), groups=ids)
    planned = [run.store.load_group(id) for id in ids]
    run.watcher.phase(f"{purpose} rollouts", len(tasks) * size)
    async with heartbeat(run, leases):
        await pool.run(planned, on_sample=lambda sample: run.watcher.advance())
    await asyncio.gather(*(queue.complete(lease) for lease in leases))
    return [run.store.load_group(id) for id in ids]


async def learn(player: Player, ordinal: int, groups: Sequence[Group]) -> tuple[dict[str, Any], Probe | None]:
    """One step on stored groups: Rows, advantages, scores, update, lineage. The probe is None without an update."""
    run, store, (policy, trainer) = player.run, player.run.store, player.learner
    usable = await _drop_unmeasured(run, groups)
    step_id = await store.begin_step(run.id, ordinal=ordinal, version=player.version)
    await store.queue.claim(run.id, step_id, [group.id for group in usable])
    rows = [row for group in usable for sample in group.samples for row in build_rows(sample)]
    algorithm = run.config.algorithm
    shuffle = np.random.default_rng(derive_seed(run.config.seed, "shuffle", ordinal))
    advantages = assign_advantages(
        usable,
        rows,
        normalize_std=algorithm.normalize_std,
        shuffle_generator=shuffle if algorithm.shuffle_rewards else None,
    )
    probe = Probe.of(policy, usable)
    mismatch = await asyncio.to_thread(trainer.score, rows)
    report = await asyncio.to_thread(trainer.step, rows, ordinal)
    player.noise = np.nanmax([player.noise, mismatch["mismatch_logprob_max"]])
    metrics: dict[str, Any] = advantages.metrics() | mismatch | report.metrics | {"learning_rate": report.learning_rate}
    metrics |= {"num_dropped_groups": len(groups) - len(usable), "skipped_updates": report.skipped}
    await record(player, step_id, ordinal, rows, report, metrics)
    await asyncio.gather(*(store.queue.archive(group.id) for group in usable))
    return metrics, probe if report.num_updates else None


async def record(
    player: Player, step_id: int, ordinal: int, rows: Sequence[Row], report: StepReport, metrics: dict[str, Any]
) -> None:
    """Write the step's Rows and metrics, and the version that it made; a step without an update makes none."""
    run, (policy, _) = player.run, player.learner
    before, after = player.version, None
    player.last_step = step_id
    if report.num_updates:
        weights_hash, parent = policy.weights_hash(), (run.id, before)
        after = player.version = await run.store.add_version(
            run.id, parent=parent, step=step_id, weights_hash=weights_hash, ordinal=ordinal + 1
        )
    step_rows = [_step_row(place, row, its) for place, (row, its) in enumerate(zip(rows, report.rows, strict=True))]
    await run.store.record_step(run.id, step_id, rows=step_rows, metrics=metrics, version_after=after)


async def publish(player: Player, probe: Probe) -> dict[str, float]:
    """Send the weights to the engine and have it prove that it holds them (V2)."""
    policy, _ = player.learner
    assert player.client is not None
    canary = Canary(
        prompt_ids=probe.prompt_ids,
        forced_ids=probe.forced_ids,
        expected=probe.score(),
        previous=probe.previous,
        noise=player.noise,
    )
    report = await player.sync.publish(player.version, sent_tensors(policy), canary, player.client)
    player.noise = max(player.noise, report.canary_delta)
    return {
        "publish_seconds": report.seconds,
        "canary_delta": report.canary_delta,
        "canary_significance": report.significance,
        "proved_by_canary": float(report.proof == "canary"),
    }


def sent_tensors(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """What a publish sends: every tensor of the policy by its Hugging Face name."""
    return policy.tensors()


# -------------------------------------------------------------------------------- start, measure, imitate, end


async def base_model(config: RunConfig, watcher: Watcher) -> Path:
    """The folder (or hub id) of the weights to start from; the tiny model is made where it isn't cached."""
    if config.model.path != tiny.NAME:
        check_model_path(config.model.path)
        return Path(config.model.path)
    folder = tiny_folder(config)
    if not tiny.is_kept(folder):
        await sft(config.model_copy(update={"name": None}), watcher)
    return folder


async def register(player: Player) -> None:
    """Version 0 of the run: the weights that it starts from, with their parent where this store knows it."""
    run, config = player.run, player.run.config
    origin = tiny.origin(tiny_folder(config)) if config.model.path == tiny.NAME and run.command != "sft" else None
    known = {record.id for record in run.store.runs()}
    player.version = await run.store.add_version(
        run.id,
        parent=origin if origin and origin[0] in known else None,
        step=None,
        weights_hash=player.weights_hash(),
        ordinal=0,
    )


async def prove(player: Player) -> None:
    """The start gate: trainer and model agree on logprobs, and the engine proves that it has the trainer's weights."""
    policy, _ = player.learner
    prompt = first_prompt(player)
    check_logprobs(policy, prompt)
    await publish(player, Probe(policy, prompt[:1], prompt[1:]))


def first_prompt(player: Player) -> list[int]:
    """The ids of the first task's prompt."""
    run = player.run
    return player.renderer.start(run.tasks("train")[0].messages, run.tool_specs())


async def evaluate(player: Player, ordinal: int) -> list[EvalResult]:
    """The held-out measure: greedy, and sampled as in training if eval.sampled."""
    run, config = player.run, player.run.config
    tasks = run.tasks("held_out")[: config.eval.tasks]
    greedy = config.sampling.model_copy(update={"temperature": 0.0})
    modes = {"greedy": greedy} | ({"sampled": config.sampling} if config.eval.sampled else {})
    results = []
    for name, sampling in modes.items():
        started = time.monotonic()
        groups = await collect(player, player.pool(sampling), tasks, purpose=Purpose.EVAL, size=1)
        result = summarize(
            groups,
            sampling=name,
            success_reward=config.eval.success_reward,
            version=player.version,
            seconds=time.monotonic() - started,
        )
        run.add_seconds({"eval": result.seconds})
        run.event("eval", ordinal=ordinal, **asdict(result))
        results.append(result)
    return results


async def imitate(player: Player) -> None:
    """Play the demonstrations, then one supervised update after another; each is a step in the store."""
    run, config = player.run, player.run.config
    tasks = list(islice(endless(run.tasks("train"), config.seed), config.sft.demonstrations))
    pool = make_pool(run, player.renderer, demonstrator_sampler(player.renderer), window=player.window)
    groups = await collect(player, pool, tasks, purpose=Purpose.COLLECT, size=1)
    rows = [row for group in groups for sample in group.samples for row in build_rows(sample, for_sft=True)]
    order = endless(rows, derive_seed(config.seed, "sft"))
    run.watcher.phase("supervised updates", config.sft.steps)
    for ordinal in range(config.sft.steps):
        await _imitate_once(player, ordinal, list(islice(order, config.sft.batch_size)))
        run.watcher.advance()


async def _imitate_once(player: Player, ordinal: int, rows: Sequence[Row]) -> None:
    """One supervised update."""
    run, (_, trainer) = player.run, player.learner
    step_id = await run.store.begin_step(run.id, ordinal=ordinal, version=player.version)
    report = await asyncio.to_thread(trainer.sft_step, rows, ordinal)
    await record(player, step_id, ordinal, rows, report, report.metrics)
    run.event("sft", ordinal=ordinal, loss=report.loss, grad_norm=report.grad_norm, version=player.version)


def save(player: Player, steps_done: int, before: Sequence[EvalResult] = ()) -> Path:
    """Write a checkpoint: weights in Hugging Face format, optimizer, and where the run stands."""
    run, (policy, trainer) = player.run, player.learner
    state = {
        "run": run.id,
        "version": player.version,
        "last_step": player.last_step,
        "steps_done": steps_done,
        "num_planned": player.num_planned,
        "before": plain([asdict(result) for result in before]),
    }
    return checkpoint.save(run.folder / "checkpoints" / f"step-{steps_done}", policy, trainer, state)


def finish(player: Player, steps: int, before: Sequence[EvalResult], after: Sequence[EvalResult]) -> Summary:
    """Write summary.json and the curve; the paths in the summary exist."""
    run, config = player.run, player.run.config
    paths = {"folder": run.folder, "database": run.store.location, "metrics": run.metrics.path}
    if player.policy is not None:
        paths["checkpoint"] = run.folder / "checkpoints" / f"step-{steps}"
    if after:
        paths["curve"] = run.folder / "curve.png"
        draw_curve(run.metrics.path, run.folder / "curve.png")
    success = {f"{result.sampling}_before": result.success for result in before}
    success |= {f"{result.sampling}_after": result.success for result in after}
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
        paths={name: str(path) for name, path in paths.items()},
        phase_seconds=run.phase_seconds,
    )
    summary.write(run.folder)
    return summary


async def _drop_unmeasured(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The groups with at least two measured samples; the others are dropped whole, with the reason."""
    usable = []
    for group in groups:
        num_measured = sum(sample.reward is not None for sample in group.samples)
        if num_measured >= 2:
            usable.append(group)
        else:
            await run.store.queue.drop(group.id, f"{num_measured} of {group.size} samples were measured")
    return usable


def _step_row(place: int, row: Row, report: RowReport) -> StepRow:
    """A Row without weight is in no Batch: it is recorded as batch -1, with its place among the step's Rows."""
    return StepRow(
        batch=-1 if report.batch is None else report.batch,
        position=place if report.position is None else report.position,
        trajectory=row.trajectory,
        end_turn=row.end_turn,
        grade_id=row.grade_id,
        advantage=row.advantage,
        weights=[(run.start, run.end, run.weight, run.reason) for run in row.runs],
        ratio_mean=report.ratio_mean,
        ratio_max=report.ratio_max,
        clip_share=report.clip_share,
    )


def _is_due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0
