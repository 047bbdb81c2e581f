"""The page on which a run can be read.

    train:  base model ─▶ [ collect ─▶ learn ─▶ publish ] × steps ─▶ checkpoint, summary, curve
                            ▲ groups of rollouts │ Rows, advantages, update │ proved weights
    replay:                 the groups are other runs', stored; nobody plays, nothing is published
    eval, rollout:          collect only
    sft:    scripted play through the same loop, or a stored run ─▶ imitate ─▶ checkpoint

The store lies between collect and learn: what is trained on is read back from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from agentrl.batch.advantages import assign_advantages
from agentrl.batch.rows import Row, build_rows
from agentrl.config import RunConfig
from agentrl.errors import TrainingError
from agentrl.evaluation import EvalResult, summarize
from agentrl.imitated import stored_rows
from agentrl.interrupts import uninterrupted
from agentrl.place import at
from agentrl.probe import Probe
from agentrl.progress import Summary, Watcher, phase, rollout_metrics
from agentrl.rollout.meter import metered
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.run_folder import Run, check_tasks, heartbeat, lease_seconds, open_run, reopen_run
from agentrl.source import check_source
from agentrl.standing import check_unchanged, finish, plan, record, register, restore, save, saved_when_stopped
from agentrl.train import tiny
from agentrl.train.gate import check_logprobs
from agentrl.train.policy import Policy
from agentrl.train.trainer import Trainer
from agentrl.types import Group, GroupState, Purpose, Task, derive_seed
from agentrl.wiring import (
    Player,
    check_trainable,
    demonstrator_of,
    devices_of,
    endless,
    load_renderer,
    make_pool,
    open_learner,
    open_player,
    open_policy,
    pretrained_folder,
    random_tiny,
    scripted,
    tiny_folder,
)

Source = AsyncGenerator[tuple[list[Group], dict[str, Any]], None]
"""Gives the groups of one step after another, and what was measured while they were played."""

# ---------------------------------------------------------------------------------------------------- commands


async def train(config: RunConfig, watcher: Watcher) -> Summary:
    """Train; returns what summary.json holds."""
    check_trainable(config)
    check_source(config)
    base = await base_model(config, watcher)
    async with open_run(config, "train", watcher, base) as run, open_learner(run, base) as player:
        await register(player)
        await prove(player)
        before = await evaluate(player, ordinal=0)
        return await train_from(player, before)


async def resume(config: RunConfig, watcher: Watcher, run_id: str) -> Summary:
    """Go on from the last complete checkpoint of a run, or from its start; what came after it is abandoned.

    What was finished since then by weights that survive is used, what was in flight is played again.
    """
    async with reopen_run(config, watcher, run_id) as (run, folder), open_learner(run, folder) as player:
        before = await restore(player, folder)
        await prove(player)
        return await train_from(player, before or await evaluate(player, ordinal=0))


async def train_from(player: Player, before: Sequence[EvalResult]) -> Summary:
    """The steps that are left, the last measure, the end."""
    config = player.run.config
    player.num_planned_before = player.num_planned
    with saved_when_stopped(player, before):
        await take_steps(player, before)
        after = await evaluate(player, ordinal=config.train.steps)
    save(player, before, after)
    return finish(player, config.train.steps, before, after)


async def take_steps(player: Player, before: Sequence[EvalResult]) -> None:
    """One step after another, with the measures and checkpoints that are due between them."""
    config = player.run.config
    async with aclosing(played(player) if config.source.name == "live" else replayed(player)) as source:
        while player.steps_done < config.train.steps:
            is_due = _is_due(player.steps_done, config.eval.every)
            held_out = await evaluate(player, ordinal=player.steps_done) if is_due else []
            if _is_due(player.steps_done, config.train.checkpoint_every):
                save(player, before, held_out)
            with at(step=player.steps_done):
                await step(player, player.steps_done, source)


async def evaluate_model(config: RunConfig, watcher: Watcher) -> Summary:
    """`agentrl eval`: the held-out measure of a model, stored like any other rollouts."""
    check_tasks(config, "held_out")
    base = None if config.is_hosted else await base_model(config, watcher)
    async with open_run(config, "eval", watcher, base) as run, open_player(run, base) as player:
        await register(player)
        return finish(player, 0, await evaluate(player, ordinal=0), [])


async def resume_evaluation(config: RunConfig, watcher: Watcher, run_id: str) -> Summary:
    """Go on with an evaluation that was stopped: what was finished is kept, the rest is played."""
    async with reopen_run(config, watcher, run_id) as (run, model), open_player(run, model) as player:
        if not run.store.versions(run.id):
            await register(player)
        check_unchanged(player)
        player.is_resumed = True
        return finish(player, 0, await evaluate(player, ordinal=0), [])


async def rollout(config: RunConfig, watcher: Watcher, num_tasks: int, split: str) -> tuple[Summary, list[Group]]:
    """`agentrl rollout`: play a few tasks."""
    check_tasks(config, split)
    base = None if config.is_hosted else await base_model(config, watcher)
    async with open_run(config, "rollout", watcher, base) as run, open_player(run, base) as player:
        await register(player)
        tasks = list(islice(endless(run.tasks(split), config.seed), num_tasks))
        groups = await collect(player, player.pool(config.sampling), tasks, purpose=Purpose.COLLECT, size=1)
        return finish(player, 0, [], []), groups


async def sft(config: RunConfig, watcher: Watcher) -> Summary:
    """`agentrl sft`: warm start on demonstrations. The tiny model starts from random weights and is cached."""
    check_tasks(config, "train")
    devices_of(config.train)
    is_tiny = config.model.path == tiny.NAME
    base = None if is_tiny else await base_model(config, watcher)
    async with open_run(config, "sft", watcher, base) as run:
        start = base or random_tiny(run)
        with open_policy(config.train, start) as policy:
            player = Player(run=run, renderer=await load_renderer(run, start), window=policy.max_positions)
            player.policy = policy
            player.trainer = Trainer(policy, config.sft.train_config(config.train), config.algorithm)
            check_logprobs(policy, first_prompt(player))
            await register(player)
            await imitate(player, start)
            folder = save(player)
            if is_tiny:
                tiny.keep(folder, tiny_folder(config), run.id, player.version)
            return finish(player, config.sft.steps, [], [])


# ------------------------------------------------------------------------------------------------- the RL step


async def step(player: Player, ordinal: int, source: Source) -> None:
    """Take groups, learn, publish; one record in the store and one in the metrics."""
    run = player.run
    seconds: dict[str, float] = {}
    with phase(seconds, "rollout" if run.config.source.name == "live" else "load"):
        groups, measured = await anext(source)
    with phase(seconds, "train"):
        metrics, probe = await learn(player, ordinal, groups, measured)
    with phase(seconds, "sync"):
        metrics |= {} if probe is None else await publish(player, probe)
    run.add_seconds(seconds)
    rollouts = rollout_metrics(groups, seconds.get("rollout")) | {"engine_faults": player.take_engine_faults()}
    run.event("step", ordinal=ordinal, version=player.version, **metrics, **rollouts, seconds=seconds)


async def played(player: Player) -> Source:
    """Each step's groups, played for it by the weights in force."""
    assert player.engines is not None
    run, config = player.run, player.run.config
    size = config.algorithm.groups_per_step
    tasks = islice(endless(run.tasks("train"), config.seed), player.steps_done * size, None)
    while True:
        pool, batch = player.training_pool(), list(islice(tasks, size))
        async with metered(player.engines.fleet.clients) as engine:
            groups = await collect(player, pool, batch, purpose=Purpose.TRAIN, size=config.algorithm.group_size)
        yield groups, {"engine": engine} if engine else {}


async def replayed(player: Player) -> Source:
    """Each step's groups, stored by other runs and sampled by whatever weights those had (`source=replay`)."""
    assert player.stored is not None
    policy, _ = player.learner
    while True:
        yield player.stored.load(player.run.store, player.steps_done, policy.max_positions), {}


async def collect(
    player: Player, pool: RolloutPool, tasks: Sequence[Task], *, purpose: Purpose, size: int
) -> list[Group]:
    """Plan one group per task, play them, and read them back from the store."""
    queue, run = player.run.store.queue, player.run
    ids = await plan(player, tasks, purpose, size)
    states = {id: run.store.load_group(id).state for id in ids} if player.is_resumed else {}
    unplayed = [id for id in ids if states.get(id) not in (GroupState.COMPLETE, GroupState.DROPPED)]
    leases = await queue.lease(run.id, lease_seconds(run.config), groups=unplayed)
    run.watcher.phase(f"{purpose} rollouts", len(tasks) * size)
    async with heartbeat(run, leases):
        await pool.run([run.store.load_group(id) for id in unplayed], on_sample=lambda sample: run.watcher.advance())
    await asyncio.gather(*(queue.complete(lease) for lease in leases))
    return [run.store.load_group(id) for id in ids]


async def learn(
    player: Player, ordinal: int, groups: Sequence[Group], measured: dict[str, Any]
) -> tuple[dict[str, Any], Probe | None]:
    """One step on stored groups: Rows, advantages, scores, update, lineage. The probe is None without an update.

    `measured`: what goes into the step's record beside the step's own metrics.
    """
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
    probe = Probe.of(policy, usable) if player.engines else None
    mismatch = await uninterrupted(asyncio.to_thread(trainer.score, rows))
    if run.config.source.name == "live":  # else other weights sampled, and the mismatch is more than noise
        player.noise = np.nanmax([player.noise, mismatch["mismatch_logprob_max"]])
    measured = measured | advantages.metrics() | mismatch | _left_out(groups, usable)
    measured |= {"num_row_tokens": sum(len(row.ids) for row in rows if row.live)}
    metrics = await uninterrupted(update(player, step_id, ordinal, rows, measured))
    await asyncio.gather(*(store.queue.archive(group.id) for group in usable if group.run == run.id))
    return metrics, probe if metrics["num_updates"] else None


async def update(
    player: Player, step_id: int, ordinal: int, rows: Sequence[Row], measured: dict[str, Any]
) -> dict[str, Any]:
    """Change the weights and record it, never one without the other; returns the step's metrics."""
    report = await asyncio.to_thread(player.learner[1].step, rows, ordinal)
    metrics = measured | report.metrics | {"learning_rate": report.learning_rate, "skipped_updates": report.skipped}
    await record(player, step_id, ordinal, rows, report, metrics)
    player.steps_done, player.num_planned_before = ordinal + 1, player.num_planned
    return metrics


async def publish(player: Player, probe: Probe) -> dict[str, float]:
    """Send the weights to the engine and have it prove that it holds them (V2)."""
    policy, _ = player.learner
    report = await player.publish(sent_tensors(policy), probe.canary(player.noise))
    player.noise = max(player.noise, report.canary_delta)
    return {
        "publish_seconds": report.seconds,
        "canary_delta": report.canary_delta,
        "canary_significance": report.significance,
        "proved_by_canary": float(report.proof == "canary"),
    }


def sent_tensors(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """What a publish sends: every tensor of the policy under all its Hugging Face names.

    An engine may hold tied ones apart: vLLM does where the model's file stores both.
    """
    tied_names = policy.tied_names
    for name, tensor in policy.tensors():
        yield name, tensor
        yield from ((tied, tensor) for tied, kept in tied_names.items() if kept == name)


# -------------------------------------------------------------------------------- start, measure, imitate, end


async def base_model(config: RunConfig, watcher: Watcher) -> Path:
    """The folder of the weights to start from; the tiny model is made where it isn't cached."""
    if config.model.path != tiny.NAME:
        return await asyncio.to_thread(pretrained_folder, config.model)
    folder = tiny_folder(config)
    if not tiny.is_kept(folder):
        await sft(config.model_copy(update={"name": None}), watcher)
    return folder


async def prove(player: Player) -> None:
    """The start gate: trainer, model and engines agree on logprobs, and each engine proves that it has the weights."""
    policy, _ = player.learner
    prompt = first_prompt(player)
    check_logprobs(policy, prompt)
    if player.engines is None:
        return
    if not player.is_resumed:
        await player.check_logprob_mode(prompt)
    await publish(player, Probe(policy, prompt[:1], prompt[1:]))
    if player.is_resumed:  # before, servers that outlived the run may have held any of its weights
        await player.check_logprob_mode(prompt)


def first_prompt(player: Player) -> list[int]:
    """The ids of the first task's prompt, or of the first one that is stored."""
    run = player.run
    if player.stored is not None:
        return player.stored.first_prompt(run.store)
    return player.renderer.start(run.tasks("train")[0].messages, run.tool_specs())


async def evaluate(player: Player, ordinal: int) -> list[EvalResult]:
    """The held-out measure: greedy, and sampled as in training (eval.samples of each task) if eval.sampled.

    Nothing where nobody plays.
    """
    run, config = player.run, player.run.config
    if player.sampler is None:
        return []
    tasks = run.tasks("held_out")[: config.eval.tasks]
    greedy = config.sampling.model_copy(update={"temperature": 0.0})
    # Greedy replies are the same each time, so one is enough.
    modes = {"greedy": (greedy, 1, 1)}
    modes |= {"sampled": (config.sampling, config.eval.samples, config.eval.k)} if config.eval.sampled else {}
    results = []
    references = run.references(tasks)
    for name, (sampling, size, k) in modes.items():
        started = time.monotonic()
        groups = await collect(player, player.pool(sampling), tasks, purpose=Purpose.EVAL, size=size)
        result = summarize(
            groups,
            sampling=name,
            success_reward=config.eval.success_reward,
            k=k,
            version=player.version,
            seconds=time.monotonic() - started,
        )
        run.add_seconds({"eval": result.seconds})
        run.event("eval", ordinal=ordinal, **result.figures(), references=references)
        results.append(result)
    return results


async def imitate(player: Player, folder: Path) -> None:
    """Get Rows to imitate, then one supervised update after another; each is a step in the store.

    `folder`: of the model that is taught.
    """
    run, config = player.run, player.run.config
    if config.sft.run is None:
        rows = await _demonstrate(player)
    else:
        rows = stored_rows(run.store, config, player.renderer.template_hash, folder, player.window)
    order = endless(rows, derive_seed(config.seed, "sft"))
    run.watcher.phase("supervised updates", config.sft.steps)
    for ordinal in range(config.sft.steps):
        with at(step=ordinal):
            # Copies: where an epoch ends in a batch, one Row may be in it twice, each time at its own place.
            await _imitate_once(player, ordinal, list(map(copy, islice(order, config.sft.batch_size))))
        player.steps_done = ordinal + 1
        run.watcher.advance()


async def _demonstrate(player: Player) -> list[Row]:
    """Rows of the environment's demonstrator at play."""
    run, config = player.run, player.run.config
    tasks = list(islice(endless(run.tasks("train"), config.seed), config.sft.demonstrations))
    assert isinstance(player.renderer, Renderer)
    demonstrator_of(run.env_class(config.env.options), tasks[0])  # raises here where there is nobody to imitate
    pool = make_pool(run, player.renderer, scripted(demonstrator_of, player.renderer), window=player.window)
    groups = await collect(player, pool, tasks, purpose=Purpose.COLLECT, size=1)
    rows = [row for group in groups for sample in group.samples for row in build_rows(sample, for_sft=True)]
    if not rows:
        raise TrainingError(f"none of {len(groups)} demonstrations gave anything to imitate; see agentrl show")
    return rows


async def _imitate_once(player: Player, ordinal: int, rows: Sequence[Row]) -> None:
    """One supervised update."""
    run, (_, trainer) = player.run, player.learner
    step_id = await run.store.begin_step(run.id, ordinal=ordinal, version=player.version)
    report = await asyncio.to_thread(trainer.sft_step, rows, ordinal)
    await record(player, step_id, ordinal, rows, report, report.metrics)
    run.event("sft", ordinal=ordinal, loss=report.loss, grad_norm=report.grad_norm, version=player.version)


async def _drop_unmeasured(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The groups with at least two measured samples; the run's other ones are dropped whole, with the reason."""
    usable = []
    for group in groups:
        num_measured = sum(sample.reward is not None for sample in group.samples)
        if num_measured >= 2:
            usable.append(group)
        elif group.run == run.id and group.state is not GroupState.DROPPED:
            await run.store.queue.drop(group.id, f"{num_measured} of {group.size} samples were measured")
    return usable


def _left_out(groups: Sequence[Group], usable: Sequence[Group]) -> dict[str, int]:
    """How many groups were dropped, and how many samples weren't measured, those of dropped groups too."""
    num_unmeasured = sum(sample.reward is None for group in groups for sample in group.samples)
    return {"num_dropped_groups": len(groups) - len(usable), "num_unmeasured": num_unmeasured}


def _is_due(done: int, every: int) -> bool:
    return done > 0 and every > 0 and done % every == 0
