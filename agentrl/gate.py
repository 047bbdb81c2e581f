"""The start gate: an engine serves the model that the run means, and computes what the trainer computes.

Each check says what to change. What a vLLM server of somebody else was started with is looked at before
(`agentrl.engine.vllm.attached`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, EngineError, EngineFault
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.renderer import Renderer
from agentrl.train.policy import Policy
from agentrl.types import Message
from agentrl.urls import hide_passwords

LOGGER = logging.getLogger(__name__)
PROBE_TEMPERATURE = 0.5
"""Raw logprobs, of temperature 1, are others."""
NUM_PROBES, PROBE_TOKENS, MAX_PROMPT = 4, 16, 256
CLEARLY = 10
"""Times that one explanation must fit better than the other. A model whose logits are all alike fits both."""
_HELLO = [Message(role="user", content="What is 2 + 3?")]


def check_sampling(config: RunConfig) -> None:
    """Raises ConfigError where rollouts would be sampled from another distribution than the trainer computes."""
    sampling = config.sampling
    if sampling.top_p < 1 or sampling.top_k > 0:
        raise ConfigError(
            f"sampling.top_p={sampling.top_p:g} sampling.top_k={sampling.top_k}: what is sampled so has other logprobs "
            "than the trainer's, which are over the whole vocabulary; train with sampling.top_p=1 sampling.top_k=0 (an "
            "evaluation may use both)"
        )


def check_devices(config: RunConfig, train_devices: Sequence[str]) -> None:
    """Raises ConfigError where trainer and engine share a GPU and nobody said how much of it the engine may have."""
    engine = config.engine
    shared = sorted({f"cuda:{number}" for number in engine.devices} & set(train_devices))
    if shared and engine.gpu_memory_utilization is None:
        raise ConfigError(
            f"{', '.join(shared)}: both engine.devices={engine.devices} and the trainer "
            f"({', '.join(train_devices)}) use it, and vLLM takes 0.9 of its memory: name other devices by "
            "engine.devices or train.devices, or set engine.gpu_memory_utilization to the share that vLLM may take"
        )


async def check_server(client: HttpClient, renderer: Renderer, config: RunConfig, *, is_training: bool) -> None:
    """It answers as it must, and reads text as the model does. Raises ConfigError, EngineError."""
    await client.check()
    await client.check_vocabulary(renderer.encoder.encode, list(renderer.encoder.control))
    check_window(client, config)
    await check_template(client, renderer, is_training=is_training)


def check_window(client: HttpClient, config: RunConfig) -> None:
    """Raises ConfigError where the server's window is shorter than the run's."""
    wanted, window = config.limits.max_context_tokens, client.max_model_len or 0
    if wanted is not None and window < wanted:
        raise ConfigError(
            f"the server at {hide_passwords(client.url)} holds {window} tokens, less than "
            f"limits.max_context_tokens={wanted}: start it with --max-model-len {wanted}, or lower the limit"
        )


def check_positions(config: RunConfig, policy: Policy, window: int) -> None:
    """Raises ConfigError where conversations may grow longer than the model was made for. `window`: the engines'."""
    longest = min(window, config.limits.max_context_tokens or window)
    if longest > policy.max_positions:
        raise ConfigError(
            f"the engines take {longest} tokens, the trainer's model {policy.max_positions}: set "
            f"limits.max_context_tokens={policy.max_positions} or less"
        )


async def check_template(client: HttpClient, renderer: Renderer, *, is_training: bool) -> None:
    """A server whose chat template writes something else serves another revision, or was told another template.

    Only ids go to it, so for an evaluation that is a warning; training raises ConfigError. Who doesn't tell passes.
    """
    theirs = await client.tokenized(messages=[{"role": "user", "content": _HELLO[0].text}])
    ours = renderer.start(_HELLO, [])
    if theirs in (None, ours):
        return
    what = (
        f"the server at {hide_passwords(client.url)} writes a conversation as {theirs}, where the chat template of "
        f"model.path gives {ours}: serve the same revision of the model, without another --chat-template"
    )
    if is_training:
        raise ConfigError(what)
    LOGGER.warning("%s", what)


async def check_vocabulary_size(client: HttpClient, model: Path) -> None:
    """The server takes each id that the model has, and no other. Raises ConfigError."""
    size = vocabulary_size(model)
    where = f"the server at {hide_passwords(client.url)}"
    if not await _takes(client, size - 1):
        raise ConfigError(f"{where} has fewer than the {size} ids of {model}: serve the model of model.path")
    if await _takes(client, size):
        raise ConfigError(f"{where} has more than the {size} ids of {model}: serve the model of model.path")


def vocabulary_size(model: Path) -> int:
    """Ids in the config of a model folder. Raises ConfigError."""
    try:
        config = json.loads((model / "config.json").read_text())
        return int((config.get("text_config") or config)["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{model / 'config.json'}: no vocab_size can be read ({error!r})") from error


async def _takes(client: HttpClient, id: int) -> bool:
    try:
        await client.generate([id], SamplingParams(max_tokens=1, temperature=1.0, seed=0), f"start-id-{id}")
    except EngineError as error:
        if error.kind is EngineFault.REFUSED:
            return False
        raise
    return True


async def check_logprob_mode(
    client: HttpClient, policy: Policy, prompt: Sequence[int], tolerance: float
) -> dict[str, Any]:
    """A few ids are sampled at temperature 0.5, and the trainer computes their logprobs again; what was found.

    `tolerance`: nats, of the mean difference. Raises ConfigError where the server reports raw logprobs, or where it
    serves other weights than the trainer has.
    """
    prompt = list(prompt[:MAX_PROMPT])
    params = [
        SamplingParams(max_tokens=PROBE_TOKENS, temperature=PROBE_TEMPERATURE, seed=seed) for seed in range(NUM_PROBES)
    ]
    sampled = await asyncio.gather(*(client.generate(prompt, each, f"start-probe-{each.seed}") for each in params))
    processed = mean_difference(policy, prompt, sampled, PROBE_TEMPERATURE)
    raw = mean_difference(policy, prompt, sampled, 1.0)
    where = f"the server at {hide_passwords(client.url)}"
    if processed > max(CLEARLY * raw, tolerance / 10):
        raise ConfigError(
            f"{where} reports raw logprobs, not those of the distribution that it samples from (they differ by "
            f"{processed:.3g} nats at temperature {PROBE_TEMPERATURE:g}): start it with --logprobs-mode "
            "processed_logprobs"
        )
    if not processed <= tolerance:  # so that NaN fails too
        raise ConfigError(
            f"{where} serves other weights than the trainer has, or computes in another way: logprobs differ by "
            f"{processed:.3g} nats in the mean, more than {tolerance:g}. Start it anew with the model of model.path, "
            "and without quantization"
        )
    return {
        "engine": client.name,
        "logprob_mode": "processed" if raw > CLEARLY * processed else "undecided",
        "mean_difference": processed,
        "mean_difference_raw": raw,
    }


def mean_difference(policy: Policy, prompt: list[int], sampled: Sequence[Generation], temperature: float) -> float:
    """mean |trainer - engine| over all sampled ids, by the trainer's logprobs at a temperature; nats."""
    differences: list[float] = []
    for generation in sampled:
        ids = prompt + generation.ids
        ours = policy.logprobs(ids, range(len(prompt), len(ids)), temperature=temperature)
        differences += [abs(a - b) for a, b in zip(ours, generation.logprobs, strict=True)]
    return sum(differences) / max(len(differences), 1)
