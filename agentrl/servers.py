"""The servers that a run asks, ours or somebody else's, opened and checked before the first rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from agentrl.config import EngineConfig, RunConfig
from agentrl.engine.embedded import EmbeddedEngine
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.interrupts import watched
from agentrl.rollout.chat_client import ChatClient
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.process import require_open_files
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.samplers import chat_sampling
from agentrl.rollout.transport import key_of
from agentrl.run_folder import Run
from agentrl.types import Message


@asynccontextmanager
async def open_engine(
    run: Run, model: Path, renderer: Renderer
) -> AsyncIterator[tuple[EmbeddedEngine | VllmEngine | None, HttpClient]]:
    """The engine and a checked client of it."""
    options = run.config.engine
    # A server of our own is in this process, so that a connection has both its ends here.
    require_open_files(run.config.rollout.concurrency * (1 if options.url else 2))
    if options.url is not None:
        # A server that reports no version serves the weights that it was started with: version 0 of this run. Nobody
        # trains on what it samples, so text without ids will do.
        encode = renderer.encode_text
        its = {"key": key_of(options), "model": options.model}
        async with make_client(options, options.url, **its, version=0, encode_text=encode) as client:
            client.max_model_len = client.max_model_len or run.config.limits.max_context_tokens
            await client.check()
            await client.check_vocabulary(renderer.encoder.encode, list(renderer.encoder.control))
            yield None, client
        return
    engine = make_engine(run, model)
    async with engine, make_client(options, engine.url, key=engine.key, name=engine.name) as client:
        run.log.hide(engine.key)
        await client.check()
        await client.check_vocabulary(renderer.encoder.encode, list(renderer.encoder.control))
        async with watched(engine.failure) if isinstance(engine, VllmEngine) else nullcontext():
            yield engine, client


@asynccontextmanager
async def open_chat(run: Run) -> AsyncIterator[ChatClient]:
    """The chat endpoint at engine.url, once it has answered: URL, key, model, tools and parameters are then right."""
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


def make_engine(run: Run, model: Path) -> EmbeddedEngine | VllmEngine:
    """The engine of `engine.name`, not started."""
    options = run.config.engine
    if options.name == "vllm":
        return VllmEngine(
            vllm_options(run, model), lambda seconds: run.watcher.phase(f"vLLM starts ({seconds:.0f} s)", 0)
        )
    engine_class = EmbeddedEngine
    if options.name == "scripted":
        from agentrl.testing.engine import ScriptedEngine

        engine_class = ScriptedEngine
    return engine_class(
        model,
        threads=options.threads,
        max_batch_tokens=options.max_batch_tokens,
        cache_tokens=options.cache_tokens,
    )


def vllm_options(run: Run, model: Path) -> VllmOptions:
    """How the run's vLLM server is started."""
    options = run.config.engine
    return VllmOptions(
        model=model,
        name="vllm",
        log=run.folder / "engine.log",
        start_timeout_s=options.start_timeout_s,
        threads=options.threads,
        max_model_len=run.config.limits.max_context_tokens,
        max_batch_tokens=options.max_batch_tokens,
        cache_gib=options.cache_gib,
        devices=tuple(options.devices),
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
