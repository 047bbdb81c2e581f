"""The servers that a run asks, ours or somebody else's, opened and checked before the first rollout."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.config_servers import EngineConfig
from agentrl.engine.embedded import EmbeddedEngine
from agentrl.engine.vllm.attached import AttachedEngine, check_awake, check_key, missing, read_facts
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.errors import EngineError
from agentrl.gate import check_server, check_vocabulary_size
from agentrl.interrupts import together, watched
from agentrl.rollout.chat_client import ChatClient
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.fleet import Fleet
from agentrl.rollout.http_client import HttpClient, ReplyGate
from agentrl.rollout.process import require_open_files
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.samplers import chat_sampling
from agentrl.rollout.transport import key_of
from agentrl.run_folder import Run
from agentrl.types import Message
from agentrl.urls import hide_passwords

LOGGER = logging.getLogger(__name__)

Engine = EmbeddedEngine | VllmEngine


@dataclass(kw_only=True, slots=True)
class Engines:
    """What a run samples from: the servers, and the fleet of clients that asks them."""

    run: Run
    model: Path
    renderer: Renderer
    engines: Sequence[Engine]
    """`engines[i]` is asked by `fleet.replicas[i]`. Empty where servers of somebody else are only evaluated."""
    fleet: Fleet

    def failure(self) -> EngineError | None:
        """Tell which servers have died since the last look; why the first did, where none is left."""
        failures = [engine.failure() if isinstance(engine, VllmEngine) else None for engine in self.engines]
        for engine, replica, failure in zip(self.engines, self.fleet.replicas, failures, strict=False):
            if failure is not None and not replica.is_lost:
                replica.is_lost = True
                LOGGER.warning("engine %r is lost: %s", engine.name, failure)
                self.run.event("engine_lost", engine=engine.name, error=str(failure))
        return failures[0] if failures and all(failures) else None

    async def revive(self) -> bool:
        """Start the servers anew that have died, with the weights that they first had; was there one?

        Nobody asks them before `readmit`. Raises EngineError where one doesn't start.
        """
        self.failure()
        lost = [index for index, replica in enumerate(self.fleet.replicas) if replica.is_lost]
        await together(self._restart(index) for index in lost)
        return bool(lost)

    def readmit(self) -> None:
        """All servers have proved that they hold the weights in force: all are asked again."""
        for replica in self.fleet.replicas:
            replica.is_lost = False

    async def _restart(self, index: int) -> None:
        engine, replica = self.engines[index], self.fleet.replicas[index]
        assert isinstance(engine, VllmEngine), "others live and die with this process"
        await engine.stop()
        await engine.start()
        before, replica.client = replica.client, client_of(self.run, engine, self.fleet.gate)
        await before.close()
        await pass_gate(self.run, self.model, self.renderer, replica.client)
        self.run.event("engine_restarted", engine=engine.name)


@asynccontextmanager
async def open_engines(run: Run, model: Path, renderer: Renderer) -> AsyncIterator[Engines]:
    """The engines of a run, started or attached, whose start gate is passed, and the fleet that asks them."""
    options, gate = run.config.engine, ReplyGate()
    # A server of our own has its ends of the connections on this machine, often in this process.
    require_open_files(run.config.rollout.concurrency * (1 if options.urls else 2))
    async with AsyncExitStack() as stack:
        engines = make_engines(run, model)
        await together(stack.enter_async_context(engine) for engine in engines)
        clients = [client_of(run, engine, gate) for engine in engines]
        fleet = Fleet(clients or await other_clients(run, renderer, gate), gate, RetryPolicy.of(options))
        stack.push_async_callback(fleet.close)
        await together(pass_gate(run, model, renderer, replica.client) for replica in fleet.replicas)
        found = Engines(run=run, model=model, renderer=renderer, engines=engines, fleet=fleet)
        async with watched(found.failure):
            try:
                yield found
            except Exception as error:
                if failure := found.failure():  # what came of it was noticed before it was
                    raise failure from error
                raise


async def pass_gate(run: Run, model: Path, renderer: Renderer, client: HttpClient) -> None:
    """Open the client, and have its server pass the start gate, as far as no trainer is needed for it."""
    is_training = run.command == "train"
    await client.open()
    if run.config.engine.urls:
        client.max_model_len = client.max_model_len or run.config.limits.max_context_tokens
    await check_server(client, renderer, run.config, is_training=is_training)
    if is_training:
        await check_vocabulary_size(client, model)


def client_of(run: Run, engine: Engine, gate: ReplyGate) -> HttpClient:
    """A client of a server that has just been started."""
    run.log.hide(engine.key)
    served_as = engine.model if isinstance(engine, VllmEngine) else engine.name
    return make_client(run.config.engine, engine.url, key=engine.key, name=engine.name, model=served_as, gate=gate)


async def other_clients(run: Run, renderer: Renderer, gate: ReplyGate) -> list[HttpClient]:
    """Clients of the servers at engine.urls, for an evaluation: any server will do."""
    options, key = run.config.engine, key_of(run.config.engine)
    for url, facts in zip(options.urls, await together(read_facts(url, key) for url in options.urls), strict=True):
        check_awake(url, facts)
        check_key(url, facts, is_training=False)
        if facts.config is not None and (lacks := missing(facts, for_evaluation=True)):
            LOGGER.warning("the server at %s was started without %s", hide_passwords(url), ", ".join(lacks))
    # A server that reports no version serves the weights that it was started with: version 0 of this run. Nobody trains
    # on what it samples, so text without ids will do.
    its = {"key": key, "model": options.model, "version": 0, "encode_text": renderer.encode_text, "gate": gate}
    return [make_client(options, url, **its) for url in options.urls]


@asynccontextmanager
async def open_chat(run: Run) -> AsyncIterator[ChatClient]:
    """The chat endpoint at engine.urls, once it has answered: URL, key, model, tools and parameters are then right."""
    config = run.config
    require_open_files(config.rollout.concurrency)
    async with ChatClient(config.engine) as client:
        hello = Message(role="user", content="Say hello.")
        sampling = chat_sampling(start_sampling(config))
        await client.ask([hello], sampling=sampling, request_id="start-check", tools=run.tool_specs())
        yield client


def start_sampling(config: RunConfig) -> SamplingParams:
    """Parameters of a first request that has all which the run will use: greedy, since that is what is refused most."""
    sampling = config.sampling
    return SamplingParams(
        max_tokens=config.limits.max_turn_tokens, temperature=0.0, top_p=sampling.top_p, top_k=sampling.top_k, seed=0
    )


def make_engines(run: Run, model: Path) -> Sequence[Engine]:
    """The engines of `engine.name`, not started; none where those at engine.urls are only evaluated."""
    options = run.config.engine
    if options.urls:
        return attached_engines(run, model) if run.command == "train" else []
    if options.name == "vllm":
        return [
            VllmEngine(vllm_options(run, model, number), lambda s: run.watcher.phase(f"vLLM starts ({s:.0f} s)", 0))
            for number in range(options.replicas)
        ]
    engine_class = EmbeddedEngine
    if options.name == "scripted":
        from agentrl.testing.engine import ScriptedEngine

        engine_class = ScriptedEngine
    return [
        engine_class(
            model,
            threads=options.threads,
            max_batch_tokens=options.max_batch_tokens,
            cache_tokens=options.cache_tokens,
        )
    ]


def attached_engines(run: Run, model: Path) -> list[AttachedEngine]:
    """The servers at engine.urls, to be trained with."""
    options = run.config.engine
    key = key_of(options)
    engines = []
    for url in options.urls:
        wanted = replace(vllm_options(run, model), name=hide_passwords(url), dtype=run.config.train.dtype)
        engines.append(AttachedEngine(wanted, url=url, key=key, model=options.model))
    return engines


def vllm_options(run: Run, model: Path, number: int = 0) -> VllmOptions:
    """How one of the run's vLLM servers is started; `number`: which of the replicas."""
    options = run.config.engine
    which = f"-{number}" if options.replicas > 1 else ""
    num_devices = len(options.devices) // options.replicas
    return VllmOptions(
        model=model,
        name=f"vllm{which}",
        log=run.folder / f"engine{which}.log",
        start_timeout_s=options.start_timeout_s,
        threads=options.threads,
        max_model_len=run.config.limits.max_context_tokens,
        max_batch_tokens=options.max_batch_tokens,
        cache_gib=options.cache_gib,
        devices=tuple(options.devices[number * num_devices :][:num_devices]),
        gpu_memory_utilization=options.gpu_memory_utilization,
        dtype=run.config.train.dtype if options.devices else "float32",
        secrets=tuple(run.config.secrets()),
    )


def make_client(options: EngineConfig, url: str, **of_server: Any) -> HttpClient:
    """A client with the configured time limits and retries."""
    return HttpClient(
        url,
        request_timeout_s=options.request_timeout_s,
        connect_timeout_s=options.connect_timeout_s,
        retry=RetryPolicy.of(options),
        **of_server,
    )
