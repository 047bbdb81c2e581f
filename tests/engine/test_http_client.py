"""The client against the embedded engine, and against servers that answer something that can't be recorded."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agentrl.engine.embedded import EmbeddedEngine
from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import Generation, SamplingParams, VersionSpan
from agentrl.rollout.http_client import HttpClient, ReplyGate
from agentrl.rollout.retry import RetryPolicy
from tests.engine.models import WINDOW, prompts
from tests.engine.wire import GENERATE, wait_for

SAMPLING = SamplingParams(max_tokens=3, temperature=1.0, seed=1)
CHOICE = {
    "token_ids": [7, 8, 9],
    "logprobs": {
        "content": [{"token_id": 7, "logprob": -1.0}, {"token_id": 8, "logprob": -2.0}, {"token_id": 9, "logprob": 0.0}]
    },
    "weight_versions": [{"version": "4", "start": 0, "end": 1}, {"version": "5", "start": 1, "end": 3}],
    "finish_reason": "length",
}
COMPLETION = {"token_ids": [7, 8, 9], "logprobs": {"token_logprobs": [-1.0, -2.0, 0.0]}, "finish_reason": "stop"}

ONCE = RetryPolicy(max_tries=1)

Answer = Callable[[dict[str, Any]], web.Response]


@asynccontextmanager
async def scripted(answer: Answer, path: str = GENERATE) -> AsyncIterator[str]:
    """A server that lists a model and answers requests on one path with what the test says."""

    async def post(request: web.Request) -> web.Response:
        body = await request.json()
        return answer(body) if body else web.json_response({}, status=400)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "other"}, {"id": "scripted", "max_model_len": 64}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post(path, post)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _choice(choice: Any) -> Answer:
    return lambda body: web.json_response({"choices": [choice]})


async def _ask(answer: Answer, path: str = GENERATE, **options: Any) -> Generation:
    async with scripted(answer, path) as url, HttpClient(url, model="scripted", retry=ONCE, **options) as client:
        client.vocab_size = 100
        return await client.generate([1, 2], SAMPLING, "asked")


async def test_the_embedded_engine_passes_the_gate(engine: EmbeddedEngine) -> None:
    async with HttpClient(engine.url, key=engine.key, name="one") as client:
        await client.check()
        assert client.max_model_len == WINDOW
        generation = await client.generate([5, 6], SAMPLING, "asked")
    assert (generation.engine, generation.request_id) == ("one", "asked")
    assert len(generation.ids) == len(generation.logprobs) == generation.spans[-1].end
    assert generation.spans[0].version == engine.version


async def test_hundreds_of_requests_run_at_once(engine: EmbeddedEngine) -> None:
    most = 0
    async with HttpClient(engine.url, key=engine.key) as client:
        sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=1)
        tasks = [
            asyncio.create_task(client.generate(prompt, sampling, f"r{i}"))
            for i, prompt in enumerate(prompts([5] * 400))
        ]
        while not all(task.done() for task in tasks):
            most = max(most, len(engine.loop.live_ids))
            await asyncio.sleep(0.005)
        assert {task.result().request_id for task in tasks} == {f"r{i}" for i in range(400)}
    assert most > 100


async def test_a_cancelled_call_is_dropped_by_the_engine(engine: EmbeddedEngine) -> None:
    async with HttpClient(engine.url, key=engine.key) as client:
        sampling = SamplingParams(max_tokens=500, temperature=1.0, seed=1)
        tasks = [asyncio.create_task(client.generate([5], sampling, f"r{i}")) for i in range(20)]
        await wait_for(lambda: len(engine.loop.live_ids) == 20)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wait_for(lambda: not engine.loop.live_ids)
        await client.generate([5], SAMPLING, "next")
    assert engine.loop.free_cache_share == 1


async def test_a_good_reply_is_read_with_its_versions() -> None:
    generation = await _ask(_choice(CHOICE))
    assert generation.ids == [7, 8, 9]
    assert generation.logprobs == [-1.0, -2.0, 0.0]
    spans = [VersionSpan(version=4, start=0, end=1), VersionSpan(version=5, start=1, end=3)]
    assert (generation.spans, generation.finish_reason) == (spans, "length")


async def test_the_request_carries_every_parameter() -> None:
    seen: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> web.Response:
        seen.append(body)
        return web.json_response({"choices": [CHOICE]})

    sampling = SamplingParams(max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, seed=3, stop_token_ids=(2, 4))
    async with scripted(answer) as url, HttpClient(url, model="scripted") as client:
        await client.generate([1, 2], sampling, "asked")
    assert seen[0].pop("cache_salt")
    assert seen == [
        {
            "token_ids": [1, 2],
            "sampling_params": {
                "max_tokens": 3,
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 7,
                "seed": 3,
                "stop_token_ids": [2, 4],
                "logprobs": 0,
            },
            "model": "scripted",
            "request_id": "asked",
            "return_token_ids": True,
        }
    ]


async def test_completions_serve_where_generate_is_missing() -> None:
    generation = await _ask(_choice(COMPLETION), "/v1/completions", version=lambda: 6)
    assert generation.ids == [7, 8, 9]
    assert generation.spans == [VersionSpan(version=6, start=0, end=3)]


async def test_completions_over_a_weight_change_are_refused() -> None:
    versions = iter([6, 7])
    with pytest.raises(EngineError, match="changed from version 6 to 7"):
        await _ask(_choice(COMPLETION), "/v1/completions", version=lambda: next(versions))


@pytest.mark.parametrize("path", [GENERATE, "/v1/completions"])
async def test_the_gate_names_return_token_ids(path: str) -> None:
    choice = {"text": "hello", "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
    async with scripted(_choice(choice), path) as url, HttpClient(url, model="scripted", version=0) as client:
        with pytest.raises(EngineError, match=rf"start-check.*{url}.*no token_ids although return_token_ids"):
            await client.check()


async def test_i05_what_arrives_ahead_of_new_weights_is_of_the_old_ones() -> None:
    """A reply that waits at the gate while weights change keeps the version that sampled it."""
    version, gate = 6, ReplyGate()

    def answer(body: dict[str, Any]) -> web.Response:
        held.enter_context(gate.hold())
        return web.json_response({"choices": [COMPLETION]})

    held = ExitStack()
    async with (
        scripted(answer, "/v1/completions") as url,
        HttpClient(url, model="scripted", version=lambda: version, gate=gate, retry=ONCE) as client,
    ):
        asked = asyncio.create_task(client.generate([1, 2], SAMPLING, "asked"))
        await asyncio.sleep(0.2)
        version = 7
        assert not asked.done()
        held.close()
        assert (await asked).spans == [VersionSpan(version=6, start=0, end=3)]


async def test_what_was_sampled_over_a_weight_change_is_sampled_again() -> None:
    versions = iter([6, 7, 7, 7])
    async with (
        scripted(_choice(COMPLETION), "/v1/completions") as url,
        HttpClient(url, model="scripted", version=lambda: next(versions), retry=RetryPolicy(wait_s=0.001)) as client,
    ):
        generation = await client.generate([1, 2], SAMPLING, "asked")
    assert generation.spans == [VersionSpan(version=7, start=0, end=3)] and generation.request_id == "asked-try1"
    assert client.faults == {EngineFault.MIXED: 1}


@pytest.mark.parametrize("path", [GENERATE, "/v1/completions"])
async def test_i01_requests_have_the_salt_of_their_weights(path: str) -> None:
    seen: list[str] = []

    def answer(body: dict[str, Any]) -> web.Response:
        seen.append(body["cache_salt"])
        return web.json_response({"choices": [CHOICE if path == GENERATE else COMPLETION]})

    gate = ReplyGate()
    async with scripted(answer, path) as url, HttpClient(url, model="scripted", version=0, gate=gate) as client:
        await client.generate([1], SAMPLING, "a")
        await client.generate([1], SAMPLING, "b")
        with gate.hold():  # nothing is sent while weights change
            waiting = asyncio.create_task(client.generate([1], SAMPLING, "c"))
            await asyncio.sleep(0.1)
            assert len(seen) == 2
        await waiting
        await client.generate([1], SAMPLING, "d")
    assert seen[0] == seen[1] != seen[2] == seen[3] and all(seen)


def _changed(**change: Any) -> dict[str, Any]:
    choice = copy.deepcopy(CHOICE)
    choice.update(change)
    return choice


def _logprobs(*values: Any) -> dict[str, Any]:
    return {"content": [{"token_id": i, "logprob": v} for i, v in zip([7, 8, 9], values, strict=False)]}


def _span(start: int, end: int, version: str = "4") -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (_changed(token_ids=[7, 8, 100]), "100, which is not in the vocabulary"),
        (_changed(token_ids=[7, 8, -1]), "-1, which is not in the vocabulary"),
        (_changed(token_ids=[7, 8, "9"]), "'9', which is not in the vocabulary"),
        (_changed(token_ids=[7, 8, 9, 10]), "4 ids came where 3 were allowed"),
        (_changed(token_ids=[7, 9, 8]), "or for other ids"),
        (_changed(logprobs=None), "0 logprobs came for 3 ids"),
        (_changed(logprobs=_logprobs(-1.0, -1.0)), "2 logprobs came for 3 ids"),
        (_changed(logprobs=_logprobs(-1.0, -1.0, 0.5)), "logprob 0.5 is not"),
        (_changed(logprobs=_logprobs(-1.0, float("nan"), -1.0)), "logprob nan is not"),
        (_changed(logprobs=_logprobs(-1.0, -1.0, float("-inf"))), "logprob -inf is not"),
        (_changed(logprobs=_logprobs(-1.0, None, -1.0)), "logprob None is not"),
        (_changed(weight_versions=[_span(0, 2)]), "don't cover 3 ids"),
        (_changed(weight_versions=[_span(0, 1), _span(2, 3)]), "don't cover 3 ids"),
        (_changed(weight_versions=[_span(0, 3, "default")]), "does not say which weights"),
        (_changed(weight_versions=None), "does not say which weights"),
        (_changed(finish_reason="error"), "finish_reason 'error'"),
    ],
)
async def test_what_cant_be_recorded_is_an_error(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=rf"request 'asked' to http://127.0.0.1:\d+{GENERATE}: .*{message}"):
        await _ask(_choice(choice))


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (lambda: web.json_response({"error": {"message": "busy"}}, status=429), "HTTP 429: busy"),
        (lambda: web.Response(text="oops", status=500), "HTTP 500: oops"),
        (lambda: web.Response(text="hello"), "no JSON object: 'hello'"),
        (lambda: web.json_response([]), "no JSON object"),
        (lambda: web.json_response({"choices": []}), "exactly one choice"),
    ],
)
async def test_failed_answers_are_errors(response: Callable[[], web.Response], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        await _ask(lambda body: response())


async def test_start_errors_say_what_to_do(engine: EmbeddedEngine) -> None:
    cases = [
        (HttpClient(engine.url, key="wrong"), "401.*set engine.key"),
        (HttpClient(engine.url, key=engine.key, model="gpt"), "does not serve 'gpt' but embedded"),
        (HttpClient("http://127.0.0.1:9"), r"127\.0\.0\.1:9/v1/models.*is the engine running"),
    ]
    for client, message in cases:
        with pytest.raises(EngineError, match=message):
            async with client:
                raise AssertionError("opened")
    async with scripted(_choice(CHOICE)) as url, HttpClient(url) as client:
        with pytest.raises(EngineError, match="no max_model_len"):
            await client.check()


async def test_a_silent_server_times_out(unused_tcp_port: int) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", unused_tcp_port)
    async with server:
        client = HttpClient(f"http://127.0.0.1:{unused_tcp_port}", request_timeout_s=0.2)
        with pytest.raises(EngineError, match=r"no answer within 0.2 s \(engine.request_timeout_s\)"):
            await client.open()
        await client.close()
        await gone.wait()


async def test_a_gate_holds_until_the_last_hold_ends() -> None:
    gate = ReplyGate()
    with gate.hold():
        with gate.hold():
            waiting = asyncio.create_task(gate.passed())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting is None
    with pytest.raises(ValueError, match="unproved"), gate.hold():
        raise ValueError("unproved")
    assert await gate.passed() == "unproved"
    with gate.hold():
        pass
    assert await gate.passed() is None
