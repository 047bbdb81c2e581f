"""The client of a real vLLM server: cut, lost and cancelled requests, a server without spans, its cache and figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import RolloutSpec
from agentrl.rollout.meter import metered, read
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.samplers import EngineSampler
from agentrl.run import sent_tensors
from agentrl.testing.endpoint import Reply, ScriptedEndpoint
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.proxy import GENERATE, FaultyProxy
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.types import StopReason
from tests.rollout.loops import make_loop, play
from tests.vllm.conftest import Pair

SHARED = list(range(100, 164))
"""Two blocks of the prefix cache."""
FAST = RetryPolicy(max_tries=6, wait_s=0.05)


class Paused:
    """The engine, paused for an update in a way of the test's choice."""

    def __init__(self, engine: VllmEngine, mode: str, *, clear_cache: bool = True) -> None:
        self.engine = engine
        self.query = f"mode={mode}&clear_cache={str(clear_cache).lower()}"

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    async def pause(self, mode: str, canary_ids: Sequence[int]) -> None:
        await post(self.engine, f"/pause?{self.query}")


async def post(engine: VllmEngine, path: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {engine.key}"}, timeout=60) as http:
        (await http.post(engine.url + path)).raise_for_status()


async def publish(pair: Pair, version: int, mode: str, *, clear_cache: bool = True) -> None:
    pair.sync.connect(pair.policy.model, [Paused(pair.engine, mode, clear_cache=clear_cache)])  # type: ignore[list-item]
    await pair.sync.publish(version, sent_tensors(pair.policy), pair.update(0.02, version), pair.client)


async def running(client: HttpClient) -> float:
    gauges, _ = read(await client.metrics() or "")
    return gauges["running"] + gauges["waiting"]


async def until_running(client: HttpClient, condition: Callable[[float], bool], timeout_s: float = 30.0) -> None:
    """Until the number of requests at the server is as wanted."""
    started = time.monotonic()
    while not condition(await running(client)):
        assert time.monotonic() - started < timeout_s, "the condition did not come true in time"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def dropped(pair: Pair) -> AsyncIterator[None]:
    """The server soon drops what was asked of it: alone, eight requests would go on for thousands of ids."""
    async with metered([pair.client]) as figures:
        yield
        await until_running(pair.client, lambda num: num == 0)
    assert figures["num_generated_tokens"] < 400


def params(seed: int, max_tokens: int = 900) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed)


def assert_exact(pair: Pair, prompt: list[int], reply: Generation, start: int = 0) -> None:
    """From `start` on, logprobs are those of the trainer's weights of now."""
    places = range(len(prompt) + start, len(prompt) + len(reply.ids))
    expected = pair.policy.logprobs(prompt + reply.ids, places)
    assert max(abs(a - b) for a, b in zip(expected, reply.logprobs[start:], strict=True)) < 1e-4


async def over_a_publish(pair: Pair, client: HttpClient, mode: str) -> list[tuple[list[int], Generation]]:
    """Prompts with their replies, of which some run while version 1 comes."""
    sampler = EngineSampler(client)
    prompts = [[*SHARED, 300 + n] for n in range(8)]
    asked = [asyncio.create_task(sampler.sample(p, [], params(n), f"t-{n}")) for n, p in enumerate(prompts)]
    await until_running(pair.client, lambda num: num == len(prompts))
    await publish(pair, 1, mode)
    return list(zip(prompts, await asyncio.gather(*asked), strict=True))


# ---- cut, cancelled, lost ----


async def test_replies_that_an_update_cuts_are_continued_with_the_new_weights(pair: Pair) -> None:
    replies = await over_a_publish(pair, pair.client, "abort")
    cut = [(number, prompt, reply) for number, (prompt, reply) in enumerate(replies) if len(reply.parts) == 2]
    assert cut
    for number, prompt, reply in cut:
        first, second = reply.parts
        assert first.finish_reason == "abort" and reply.finish_reason == second.finish_reason != "abort"
        assert (first.request_id, second.request_id) == (f"t-{number}", f"t-{number}-call1")
        middle, end = len(first.ids), len(reply.ids)
        assert [(span.version, span.start, span.end) for span in reply.spans] == [(0, 0, middle), (1, middle, end)]
        assert_exact(pair, prompt, reply, start=middle)


async def test_cancelled_rollouts_end_their_requests(pair: Pair, folder: Path) -> None:
    renderer = Renderer.from_pretrained(str(folder))
    recorder = MemoryRecorder()
    loop = make_loop(renderer, pair.client, recorder, window=1024, max_turn_tokens=900)
    task = Toy.tasks(ToyConfig(), "train")[0]
    rollouts = [
        asyncio.create_task(loop.run(RolloutSpec(run="run", task=task, group=None, sample=n))) for n in range(8)
    ]
    await until_running(pair.client, lambda num: num == 8)
    for rollout in rollouts:
        rollout.cancel()
    async with dropped(pair):
        await asyncio.gather(*rollouts, return_exceptions=True)
    assert [trajectory.stop_reason for trajectory in recorder.finished] == [StopReason.CANCELLED] * 8


@pytest.mark.parametrize("hidden", [(), (GENERATE,)], ids=["generate", "completions"])
async def test_a_lost_request_is_dropped_at_the_server(pair: Pair, hidden: tuple[str, ...]) -> None:
    """The proxy goes on although its client has gone: only the client's word ends the work."""
    once = RetryPolicy(max_tries=1)
    async with (
        FaultyProxy(pair.engine.url, hidden=hidden) as proxy,
        HttpClient(proxy.url, key=pair.engine.key, request_timeout_s=0.5, retry=once, version=0) as client,
    ):
        asked = (client.generate([*SHARED, n], params(n), f"lost-{n}") for n in range(8))
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, EngineError) and "no answer within 0.5 s" in str(error)
        async with dropped(pair):
            pass


async def test_f10_a_reply_that_was_lost_is_sampled_again_alike(pair: Pair) -> None:
    faults = iter(["lost_reply"])
    async with proxied(pair, fault=lambda: next(faults, None)) as client:
        lost = await client.generate(SHARED, params(3, 20), "r")
    right = await pair.client.generate(SHARED, params(3, 20), "other")
    assert lost.request_id == "r-try1" and lost.ids == right.ids
    assert client.faults == {EngineFault.CONNECTION: 1}


@asynccontextmanager
async def proxied(pair: Pair, **options: object) -> AsyncIterator[HttpClient]:
    """A client through a proxy, which names the engine's version itself."""
    async with FaultyProxy(pair.engine.url, **options) as proxy:  # type: ignore[arg-type]
        key, version = pair.engine.key, lambda: pair.engine.version
        async with HttpClient(proxy.url, key=key, version=version, retry=FAST, gate=pair.client.gate) as client:
            yield client


async def test_the_scripted_endpoint_takes_an_abort_as_vllm_does(pair: Pair) -> None:
    body = {"request_ids": ["generate-tokens-r"]}
    async with ScriptedEndpoint(lambda seen: Reply(ids=[1]), key=pair.engine.key) as endpoint:
        answers = []
        for url in (pair.engine.url, endpoint.url):
            for headers in ({"Authorization": f"Bearer {pair.engine.key}"}, {}):
                async with httpx.AsyncClient(headers=headers) as http:
                    answers.append((await http.post(url + "/inference/v1/abort_requests", json=body)).status_code)
    assert answers == [200, 401, 200, 401] and endpoint.aborted == body["request_ids"]


# ---- without spans ----


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_i05_without_spans_a_reply_has_the_version_of_the_gate_or_is_sampled_again(pair: Pair, mode: str) -> None:
    async with proxied(pair, hidden=(GENERATE,)) as client:
        await client.check()
        replies = await over_a_publish(pair, client, mode)
    told = [[span.version for span in reply.spans] for _, reply in replies]
    # What ran over the change is thrown away and sampled again; a wait or an abort loses nothing.
    expected = {"wait": [0], "abort": [0, 1], "keep": [1]}[mode]
    assert expected in told and all(versions in ([0], expected) for versions in told)
    assert client.faults == ({EngineFault.MIXED: told.count([1])} if mode == "keep" else {})
    for prompt, reply in replies:
        if (last := reply.spans[-1]).version == 1:
            assert_exact(pair, prompt, reply, start=last.start)


# ---- the prefix cache, figures, overflow ----


async def test_i01_cached_prefixes_serve_their_own_version_only_even_where_no_cache_is_reset(pair: Pair) -> None:
    prompt = [*SHARED, 7]

    async def hits(number: int) -> float:
        async with metered([pair.client]) as figures:
            reply = await pair.client.generate(prompt, params(number, 8), f"r-{number}")
        assert_exact(pair, prompt, reply)
        assert figures["num_prefix_query_tokens"] == len(prompt)
        return figures["num_prefix_hit_tokens"]

    assert [await hits(number) for number in range(3)] == [0, 64, 64]
    await publish(pair, 1, "keep", clear_cache=False)
    assert [await hits(number) for number in range(3, 5)] == [0, 64]


async def test_what_the_engine_says_of_itself(pair: Pair) -> None:
    async with metered([pair.client], every_s=0.05) as figures:
        replies = await asyncio.gather(*(pair.client.generate([*SHARED, n], params(n), f"r-{n}") for n in range(8)))
    assert figures["num_generated_tokens"] == sum(len(reply.ids) for reply in replies)
    assert 0 < figures["running_mean"] <= figures["running_max"] <= 8
    assert 0 < figures["kv_usage_mean"] <= figures["kv_usage_max"] < 1
    assert figures["num_preemptions"] == 0 and figures["waiting_max"] <= 8


async def test_e02_a_prompt_longer_than_the_window_is_told_by_server_trajectory_and_turn(
    pair: Pair, folder: Path
) -> None:
    renderer = Renderer.from_pretrained(str(folder))
    long = ToyConfig(messages=("one two three " * 400, "yes"))
    sample = await play(make_loop(renderer, pair.client, config=long, window=10_000))
    trajectory = sample.trajectory
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    for part in (pair.engine.url, f"{trajectory.id}-0", "HTTP 400"):
        assert part in str(trajectory.error)


async def test_c08_the_gap_to_the_trainer_stays_flat_while_conversations_grow(pair: Pair) -> None:
    """Fixed weights, prefix caching on: twenty rounds of growing conversations."""
    conversations = [[*SHARED, 200 + n] for n in range(3)]
    gaps: list[float] = []
    async with metered([pair.client]) as figures:
        for round in range(20):
            replies = await asyncio.gather(
                *(
                    pair.client.generate(ids, params(31 * round + n, 32), f"r-{round}-{n}")
                    for n, ids in enumerate(conversations)
                )
            )
            gap = 0.0
            for ids, reply in zip(conversations, replies, strict=True):
                expected = pair.policy.logprobs(ids + reply.ids, range(len(ids), len(ids) + len(reply.ids)))
                gap = max(gap, *(abs(a - b) for a, b in zip(expected, reply.logprobs, strict=True)))
                ids += [*reply.ids, 300 + round, 301]
            gaps.append(gap)
    assert max(map(len, conversations)) > 650 and figures["num_prefix_hit_tokens"] > 10_000
    assert max(gaps) < 1e-4
