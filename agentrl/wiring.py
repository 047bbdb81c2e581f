"""Builds what plays and what learns from a config, and takes it down again. The run reads in `agentrl.run`."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from agentrl import plugins
from agentrl.config import ModelConfig, RunConfig, SamplingConfig, TrainConfig
from agentrl.environment import Environment, Oracle
from agentrl.errors import ConfigError, EngineFault, ModelError, TemplateError
from agentrl.gate import check_devices, check_logprob_mode, check_positions, check_sampling
from agentrl.interrupts import together, watched
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.parsers import make_parser
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.probe import probe_template
from agentrl.rollout.process import collector_spared
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ChatSampler, EngineSampler, ReplySampler, ScriptedSampler
from agentrl.rollout.unrendered import Unrendered
from agentrl.run_folder import Run
from agentrl.servers import Engine, Engines, open_chat, open_engines
from agentrl.source import StoredGroups, stored_groups
from agentrl.sync.base import Canary, PublishReport, WeightSync
from agentrl.sync.choose import choose_transport, make_transport
from agentrl.sync.memory import MemorySync
from agentrl.sync.remote import RemoteSync
from agentrl.train import smollm2, tiny
from agentrl.train.devices import choose_devices
from agentrl.train.policy import Policy
from agentrl.train.pretrained import local_folder
from agentrl.train.trainer import Trainer
from agentrl.types import Task, Trajectory, derive_seed
from agentrl.urls import hide_passwords

MakeSampler = Callable[[Environment, Trajectory], ReplySampler]
"""Who replies in an episode whose trajectory begins: task and number of the sample are known."""
NOISE_FLOOR = 1e-6
"""Nats; two exact computations of a logprob in float32 differ by more than this."""
CANARY_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.3}
"""Nats by which an engine may differ from the trainer on the canary, by train.dtype: in bfloat16 a logit of 32 is exact
to 1/8 only, and the engine may compute in another type."""
UNKNOWN_WINDOW = 2**31
"""Tokens: of its window a chat endpoint says nothing until a conversation is longer. Or there is no engine."""
T = TypeVar("T")


@dataclass(kw_only=True, slots=True)
class Player:
    """What plays, and what learns where something does."""

    run: Run
    renderer: Renderer | Unrendered
    window: int
    """The engine's context length in tokens."""
    sampler: MakeSampler | None = None
    """Who the policy's replies come from; None: nobody is asked."""
    faults: Counter[EngineFault] = field(default_factory=Counter)
    """Failed tries of requests by kind, also those that a later try made good."""
    engines: Engines | None = None
    """None: a chat endpoint, or nobody, is asked."""
    stored: StoredGroups | None = None
    """What is trained on, where it isn't played; see `agentrl.source`."""
    policy: Policy | None = None
    trainer: Trainer | None = None
    sync: WeightSync[Any] = field(default_factory=MemorySync)
    version: int = 0
    """Of the weights in force."""
    last_step: int | None = None
    """Id of the last step that was recorded."""
    steps_done: int = 0
    """Steps of the surviving line that are recorded: the next step's ordinal."""
    num_planned: int = 0
    """Groups planned so far: the next ordinal in the plan."""
    num_planned_before: int = 0
    """The same as of the last step: from there a resumed run goes through the plan again."""
    is_resumed: bool = False
    """Was the run stopped before? Then groups of its plan may be in the store already."""
    noise: float = NOISE_FLOOR
    """Largest difference in logprob seen between trainer and engine with equal weights (nats)."""

    @property
    def learner(self) -> tuple[Policy, Trainer]:
        """What learns; only where this run trains."""
        assert self.policy is not None and self.trainer is not None
        return self.policy, self.trainer

    def pool(self, sampling: SamplingConfig) -> RolloutPool:
        """Rollouts that sample from the engine."""
        assert self.sampler is not None
        return make_pool(self.run, self.renderer, self.sampler, window=self.window, sampling=sampling)

    def training_pool(self) -> RolloutPool:
        """Rollouts that are trained on: from the engine, but for the last algorithm.oracle_samples of each group."""
        assert self.sampler is not None
        sampler, algorithm = self.sampler, self.run.config.algorithm
        if algorithm.oracle_samples:
            assert isinstance(self.renderer, Renderer)
            num_sampled = algorithm.group_size - algorithm.oracle_samples
            sampler = divided(sampler, scripted(oracle_of, self.renderer), num_sampled)
        return make_pool(self.run, self.renderer, sampler, window=self.window)

    async def publish(self, tensors: Iterator[tuple[str, torch.Tensor]], canary: Canary) -> PublishReport:
        """Put the version in force on every engine; those that have died are started anew for it.

        Raises PublishError, and EngineError where one doesn't start.
        """
        policy, engines = self.learner[0], self.engines
        assert engines is not None
        if await engines.revive():
            self.sync.connect(policy.model, engines.engines)
        report = await self.sync.publish(self.version, tensors, canary, engines.fleet)
        engines.readmit()
        return report

    async def check_logprob_mode(self, prompt: list[int]) -> None:
        """What each engine samples has the logprobs that the trainer computes. Raises ConfigError."""
        policy, run, engines = self.learner[0], self.run, self.engines
        assert engines is not None
        tolerance = CANARY_TOLERANCE[run.config.train.dtype]
        clients = engines.fleet.clients
        for found in await together(check_logprob_mode(client, policy, prompt, tolerance) for client in clients):
            run.event("gate", **found)

    def take_engine_faults(self) -> dict[str, int]:
        """The faults since the last call."""
        faults = {str(kind): num for kind, num in self.faults.items()}
        self.faults.clear()
        return faults

    def weights_hash(self) -> str:
        """Of the weights in force; empty where a server of somebody else holds them."""
        if self.policy is not None:
            return self.policy.weights_hash()
        engines = self.engines.engines if self.engines else []
        return engines[0].weights_hash() if engines else ""


@asynccontextmanager
async def open_player(run: Run, model: Path | None) -> AsyncIterator[Player]:
    """The engines (ours, or those at engine.urls) whose start gate is passed. No model: the run is hosted."""
    if run.config.engine.api == "chat":
        async with open_hosted(run, model) as player:
            yield player
        return
    assert model is not None
    renderer = await load_renderer(run, model)
    async with open_engines(run, model, renderer) as engines:
        fleet = engines.fleet
        with collector_spared():
            yield Player(
                run=run,
                renderer=renderer,
                window=fleet.max_model_len,
                sampler=lambda env, trajectory: EngineSampler(fleet.conversation()),
                faults=fleet.faults,
                engines=engines,
            )


@asynccontextmanager
async def open_hosted(run: Run, model: Path | None) -> AsyncIterator[Player]:
    """The chat endpoint at engine.urls whose start gate is passed; a model's tokenizer, if there is one, counts."""
    renderer = hosted_renderer(run) if run.config.is_hosted or model is None else await load_renderer(run, model)
    async with open_chat(run) as client:
        with collector_spared():
            yield Player(
                run=run,
                renderer=renderer,
                window=run.config.limits.max_context_tokens or UNKNOWN_WINDOW,
                sampler=lambda env, trajectory: ChatSampler(client, renderer, env),
                faults=client.faults,
            )


@asynccontextmanager
async def open_learner(run: Run, model: Path) -> AsyncIterator[Player]:
    """A player with a policy and its trainer; an engine, where there is one, holds its own copy of the weights."""
    config = run.config
    async with open_player(run, model) if config.is_played else open_idle(run, model) as player:
        if config.source.name == "replay":
            assert isinstance(player.renderer, Renderer)
            player.stored = stored_groups(run, player.renderer)
        with open_policy(config.train, model) as policy:
            player.policy, player.trainer = policy, Trainer(policy, config.train, config.algorithm)
            player.trainer.watches_mismatch = config.source.name == "live"
            with connected(player):
                async with watched(policy.ranks.failure):
                    yield player


@asynccontextmanager
async def open_idle(run: Run, model: Path) -> AsyncIterator[Player]:
    """Nobody plays: what is learnt from is stored."""
    yield Player(run=run, renderer=await load_renderer(run, model), window=UNKNOWN_WINDOW)


@contextmanager
def connected(player: Player) -> Iterator[None]:
    """The engines, where there are any, take their weights from the policy."""
    policy, _ = player.learner
    if player.engines is None:
        yield
        return
    check_positions(player.run.config, policy, player.window)
    engines = player.engines.engines
    player.sync = open_sync(player.run, engines[0])
    player.sync.connect(policy.model, engines)
    try:
        yield
    finally:
        player.sync.close()


def open_sync(run: Run, engine: Engine) -> WeightSync[Any]:
    """How weights get to an engine of this kind."""
    tolerance = CANARY_TOLERANCE[run.config.train.dtype]
    name = choose_transport(run.config, devices_of(run.config.train))
    if name == "memory":
        return MemorySync(tolerance=tolerance)
    transport = make_transport(name, run.folder / "weights")
    return RemoteSync(transport, pause_mode=run.config.sync.in_flight, tolerance=tolerance)


def open_policy(config: TrainConfig, model: Path) -> Policy:
    """The weights to train; a context manager."""
    return Policy.load(
        model,
        device=devices_of(config),
        threads=config.threads,
        logprob_chunk_tokens=config.logprob_chunk_tokens,
        dtype=getattr(torch, config.dtype),
        activation_checkpointing=config.activation_checkpointing,
    )


def check_trainable(config: RunConfig) -> None:
    """Before anything heavy starts. Raises ConfigError for what can't be trained so."""
    if config.engine.api == "chat":
        raise ConfigError(
            "engine.api=chat: a chat endpoint gives text without ids and logprobs, so nothing can be trained on it; "
            "measure it by agentrl eval, or leave it out to train"
        )
    if config.engine.urls and config.engine.name != "vllm":
        raise ConfigError(
            "engine.urls: weights can be sent to running vLLM servers only; say engine=vllm, or leave engine.urls "
            "out to train"
        )
    if config.algorithm.oracle_samples and config.is_played:
        env = plugins.environment(config.env.name)(config.env.options)
        oracle_of(env, env.tasks(config.env.options, "train")[0])
    check_sampling(config)
    check_devices(config, devices_of(config.train))
    choose_transport(config, devices_of(config.train))


def devices_of(config: TrainConfig) -> list[str]:
    """The device of each rank. Raises ConfigError for what isn't there, before anything heavy starts."""
    return choose_devices(config, torch.cuda.device_count())


def make_pool(
    run: Run,
    renderer: Renderer | Unrendered,
    sampler: MakeSampler,
    *,
    window: int,
    sampling: SamplingConfig | None = None,
) -> RolloutPool:
    """A pool of AgentLoops. `window` is the engine's context length in tokens."""
    config = run.config
    loop = AgentLoop(
        env_class=run.env_class,
        env_config=config.env.options,
        sampler=sampler,
        renderer=renderer,
        recorder=run.store.recorder,
        limits=config.limits,
        sampling=sampling or config.sampling,
        window=window,
        chat=run.chat,
        boxes=run.boxes,
    )
    return RolloutPool(loop, config.rollout, config.seed)


def scripted(script_of: Callable[[Environment, Task], Oracle], renderer: Renderer) -> MakeSampler:
    """A script of the environment's plays every episode."""
    return lambda env, trajectory: ScriptedSampler(script_of(env, trajectory.task), renderer)


def divided(first: MakeSampler, others: MakeSampler, num_first: int) -> MakeSampler:
    """Of each group, `first` plays the first so many samples and `others` the rest."""
    return lambda env, trajectory: (first if trajectory.sample < num_first else others)(env, trajectory)


def demonstrator_of(env: Environment, task: Task) -> Oracle:
    """Who plays what is imitated. Raises ConfigError where there is nobody."""
    demonstrator = env.demonstrator(task)
    if demonstrator is None:
        raise ConfigError(
            f"environment {task.env!r} has no demonstrator and no oracle, so there is nothing to imitate; "
            f"start from a model that can play it: model.path=…"
        )
    return demonstrator


def oracle_of(env: Environment, task: Task) -> Oracle:
    """The environment's oracle. Raises ConfigError where the task has none."""
    oracle = env.oracle(task)
    if oracle is None:
        raise ConfigError(
            f"environment {task.env!r} has no oracle for task {task.id}: leave algorithm.oracle_samples out"
        )
    return oracle


async def load_renderer(run: Run, model_path: str | Path) -> Renderer:
    """The model's renderer, after its start check; what was found out about the template is stored with the run.

    Raises ModelError, ConfigError, or TemplateError where the template can't be followed faithfully in the run's mode.
    """
    renderer = Renderer.from_pretrained(
        str(model_path), mode=run.config.rollout.renderer_mode, tool_parser=run.config.model.tool_parser
    )
    facts = probe_template(renderer, run.tool_specs())
    if refused := facts.refused(renderer.mode):
        command = f"agentrl doctor --model {run.config.model.path} --env {run.config.env.name}"
        raise TemplateError(f"{refused}. All that the template does: {command}")
    await run.store.describe_template(run.id, facts.as_json())
    run.event(
        "model",
        path=run.config.model.path,
        folder=str(model_path),
        source=smollm2.origin(model_path),
        template_hash=renderer.template_hash,
        tools_in_system=renderer.tools_in_system,
        calls_in_content=renderer.template.calls_in_content,
        tool_parser=renderer.parser.name,
        renderer_mode=renderer.mode,
        template=facts.as_json(),
    )
    return renderer


def hosted_renderer(run: Run) -> Unrendered:
    """What stands in for the renderer where only an endpoint has the model."""
    engine = run.config.engine
    url = hide_passwords(engine.url or "")
    run.event("model", path=engine.model, folder=url, tools_in_system=False, renderer_mode=Unrendered.mode)
    return Unrendered()


def endless(items: Sequence[T], seed: int) -> Iterator[T]:
    """The items in a seeded order, epoch after epoch, each epoch in another order."""
    epoch = 0
    while True:
        order = list(items)
        random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
        yield from order
        epoch += 1


def pretrained_folder(config: ModelConfig) -> Path:
    """The folder of model.path, converted or downloaded where it must be. Blocks; raises ModelError."""
    if config.path == smollm2.NAME:
        return smollm2.prepare(config.cache_dir)
    looks_local = config.path.startswith((".", "/", "~")) or config.path.count("/") > 1
    if looks_local and not (Path(config.path).expanduser() / "config.json").is_file():
        raise ModelError(f"model.path={config.path}: no model folder there (config.json is missing); check the path")
    return local_folder(config.path)


def random_tiny(run: Run) -> Path:
    """A tiny model with random weights, whose tokenizer knows the environment's words."""
    env = run.env_class(run.config.env.options)
    tasks = run.tasks("train")[: tiny.CORPUS_TASKS]
    texts = [json.dumps(spec) for spec in run.tool_specs()]
    for task in tasks:
        texts += [message.text for message in task.messages]
        oracle = env.oracle(task)
        texts += [make_parser("hermes").write(oracle(task.messages))] if oracle else []
    return tiny.make(run.folder / "start", texts, run.config.seed)


def tiny_folder(config: RunConfig) -> Path:
    """Where the tiny model is cached: one folder per environment, warm start and seed."""
    recipe = {name: config.public()[name] for name in ("env", "sft", "limits", "seed")}
    return tiny.cache_folder(config.model.cache_dir, config.env.name, recipe)
