"""The client against an endpoint that fails in every way: what is tried again, what isn't, and what it is called."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ContextOverflow, EngineError, EngineFault
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.retry import RetryPolicy
from agentrl.testing.endpoint import FAULTS, Fault, FaultPlan, Reply, ScriptedEndpoint, SeenRequest
from agentrl.types import StopReason
from tests.engine.wire import wait_for

SAMPLING = SamplingParams(max_tokens=3, temperature=1.0, seed=11)
FAST = RetryPolicy(max_tries=4, wait_s=0.002)
KINDS: dict[Fault, EngineFault] = {
    "500": EngineFault.SERVER,
    "429": EngineFault.BUSY,
    "reset": EngineFault.CONNECTION,
    "timeout": EngineFault.TIMEOUT,
    "overflow": EngineFault.REFUSED,
    "lost_reply": EngineFault.CONNECTION,
    "garbage": EngineFault.GARBAGE,
    "no_ids": EngineFault.NO_IDS,
    "no_logprobs": EngineFault.BAD_LOGPROBS,
    "short_logprobs": EngineFault.BAD_LOGPROBS,
    "nan": EngineFault.BAD_LOGPROBS,
    "null": EngineFault.BAD_LOGPROBS,
    "sentinel": EngineFault.BAD_LOGPROBS,
}


def say(seen: SeenRequest) -> Reply:
    return Reply(ids=[7, 8, 2])


def first(count: int, fault: Fault) -> Callable[[], Fault | None]:
    """A plan: the first `count` requests fail."""
    faults = iter([fault] * count)
    return lambda: next(faults, None)


def client_of(endpoint: ScriptedEndpoint, retry: RetryPolicy = FAST, **options: Any) -> HttpClient:
    return HttpClient(endpoint.url, key=endpoint.key, retry=retry, request_timeout_s=0.3, **options)


async def failure(fault: Fault, retry: RetryPolicy = FAST) -> tuple[EngineError, HttpClient, ScriptedEndpoint]:
    """The error of a call to an endpoint that always fails so."""
    async with ScriptedEndpoint(say, fault=fault, key="hush") as endpoint, client_of(endpoint, retry) as client:
        with pytest.raises(EngineError) as caught:
            await client.generate([1, 2], SAMPLING, "run-3")
    return caught.value, client, endpoint


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_has_its_kind_and_is_tried_again_only_if_it_may_pass(fault: Fault) -> None:
    error, client, endpoint = await failure(fault)
    assert error.kind is KINDS[fault]
    tries = FAST.max_tries if error.kind.is_transient else 1
    assert client.faults == {error.kind: tries}
    overflow = StopReason.CONTEXT_OVERFLOW if fault == "overflow" else StopReason.ENGINE_ERROR
    assert error.stop_reason is overflow and endpoint.url in str(error) and "run-3" in str(error)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if KINDS[fault].is_transient])
async def test_a_fault_that_passes_is_made_good_and_counted(fault: Fault) -> None:
    endpoint = ScriptedEndpoint(say, fault=first(2, fault), key="hush")
    async with endpoint, client_of(endpoint) as client:
        generation = await client.generate([1, 2], SAMPLING, "run-3")
    assert generation.ids == [7, 8, 2] and client.faults == {KINDS[fault]: 2}


async def test_f10_a_lost_reply_is_one_sample_with_the_id_of_the_try_that_arrived() -> None:
    endpoint = ScriptedEndpoint(say, fault=first(1, "lost_reply"))
    async with endpoint, client_of(endpoint) as client:
        generation = await client.generate([1, 2], SAMPLING, "run-3")
    # The server worked twice, under two ids and with one seed; what is recorded is one reply with one id.
    assert [seen.request_id for seen in endpoint.seen] == ["run-3", "run-3-try1"]
    assert {seen.sampling["seed"] for seen in endpoint.seen} == {SAMPLING.seed}
    assert generation.request_id == "run-3-try1" and generation.ids == [7, 8, 2]


async def test_c03_a_server_that_dies_of_nan_is_tried_a_bounded_number_of_times() -> None:
    error, client, _ = await failure("500", RetryPolicy(max_tries=3, wait_s=0.001))
    assert "HTTP 500" in str(error) and "Out of range float values" in str(error)
    assert client.faults == {EngineFault.SERVER: 3} and error.stop_reason is StopReason.ENGINE_ERROR


@pytest.mark.parametrize(("fault", "says"), [("nan", "logprob nan is not"), ("null", "logprob None is not")])
async def test_c03_nan_and_null_logprobs_are_never_recorded(fault: Fault, says: str) -> None:
    error, client, endpoint = await failure(fault)
    assert says in str(error) and client.faults == {EngineFault.BAD_LOGPROBS: 1} and len(endpoint.seen) == 1


async def test_c03_the_sentinel_is_no_probability() -> None:
    error, _, _ = await failure("sentinel")
    assert "-9999.0 is the server's stand-in for minus infinity" in str(error)


async def test_a13_missing_and_short_ids_fail_at_once_by_name() -> None:
    missing, client, _ = await failure("no_ids")
    assert "holds no token_ids although return_token_ids was set" in str(missing)
    assert client.faults == {EngineFault.NO_IDS: 1}
    short, _, _ = await failure("short_logprobs")
    assert "2 logprobs came for 3 ids" in str(short)


async def test_e02_a_400_for_too_long_a_request_is_an_overflow_and_other_400s_are_not() -> None:
    overflow, _, _ = await failure("overflow")
    assert isinstance(overflow, ContextOverflow) and "maximum context length" in str(overflow)
    async with ScriptedEndpoint(say) as endpoint, client_of(endpoint) as client:
        with pytest.raises(EngineError, match="HTTP 400: token_ids") as caught:
            await client.generate([], SAMPLING, "empty")
    assert not isinstance(caught.value, ContextOverflow) and caught.value.kind is EngineFault.REFUSED


async def test_a_server_that_comes_back_is_found_again() -> None:
    endpoint = ScriptedEndpoint(say)
    async with endpoint, client_of(endpoint, RetryPolicy(max_tries=50, wait_s=0.02, max_wait_s=0.05)) as client:
        await client.generate([1], SAMPLING, "before")
        await endpoint.go_down()
        asked = asyncio.create_task(client.generate([1], SAMPLING, "while-down"))
        await wait_for(lambda: client.faults[EngineFault.CONNECTION] >= 2)
        await endpoint.come_up()
        assert (await asked).ids == [7, 8, 2]


async def test_a_cancelled_call_says_what_it_was_waiting_for() -> None:
    endpoint = ScriptedEndpoint(say, fault="500")
    async with endpoint, client_of(endpoint, RetryPolicy(max_tries=9, wait_s=60, max_wait_s=60)) as client:
        task = asyncio.create_task(client.generate([1], SAMPLING, "asked"))
        await wait_for(lambda: client.faults[EngineFault.SERVER] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
    assert isinstance(caught.value.__cause__, EngineError) and "HTTP 500" in str(caught.value.__cause__)


@given(
    num_failed=st.integers(1, 200),
    wait_s=st.floats(0, 100),
    max_wait_s=st.floats(0, 100),
    asked=st.none() | st.floats(0, 1e9),
)
def test_waits_are_bounded_and_heed_the_server(
    num_failed: int, wait_s: float, max_wait_s: float, asked: float | None
) -> None:
    wait = RetryPolicy(max_tries=3, wait_s=wait_s, max_wait_s=max_wait_s).wait(num_failed, asked)
    assert min(asked or 0.0, max_wait_s) <= wait <= max_wait_s


def test_waits_differ_and_grow() -> None:
    policy = RetryPolicy(wait_s=0.5, max_wait_s=30)
    early, late = ([policy.wait(n, None) for _ in range(200)] for n in (1, 6))
    assert max(early) <= 0.5 and len({round(wait, 6) for wait in late}) > 100 and max(late) > 4


async def test_f06_a_wave_of_rollouts_on_a_server_that_accepts_slowly_loses_nobody() -> None:
    endpoint = ScriptedEndpoint(say, accept_every_s=0.002, backlog=64)
    async with endpoint, HttpClient(endpoint.url) as client:
        asked = [client.generate([1], SAMPLING, f"r{i}") for i in range(300)]
        assert {generation.request_id for generation in await asyncio.gather(*asked)} >= {"r0", "r299"}
    assert len(endpoint.seen) == 300


async def test_f06_a_proxy_from_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with ScriptedEndpoint(say) as endpoint, client_of(endpoint) as client:
        assert (await client.generate([1], SAMPLING, "asked")).ids == [7, 8, 2]


def test_a_fault_plan_follows_from_its_seed() -> None:
    def drawn(seed: int) -> list[Fault | None]:
        plan = FaultPlan(0.2, seed=seed)
        return [plan() for _ in range(2000)]

    assert drawn(1) == drawn(1) != drawn(2)
    faults = [fault for fault in drawn(1) if fault is not None]
    assert 300 < len(faults) < 500 and set(faults) == set(FAULTS)
    with pytest.raises(ValueError, match="known are"):
        FaultPlan(0.1, ["no such fault"])  # type: ignore[list-item]


async def test_the_endpoint_runs_in_a_process_of_its_own_and_asks_for_its_key() -> None:
    command = [sys.executable, "-m", "agentrl.testing.endpoint", "--replies", "[[7, 2], [9, 2]]"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        where = json.loads(process.stdout.readline())
        async with HttpClient(where["url"], key=where["key"]) as client:
            said = [(await client.generate([1], SAMPLING, f"abc-{turn}")).ids for turn in range(3)]
        with pytest.raises(EngineError, match="401"):
            async with HttpClient(where["url"], key="wrong"):
                raise AssertionError("opened")
        process.stdin.close()
        assert process.wait(20) == 0
    assert said == [[7, 2], [9, 2], [9, 2]]


async def test_a14_a_server_with_another_vocabulary_is_named_at_start() -> None:
    def ours(text: str) -> list[int]:
        return [ord(character) for character in text]

    def theirs(text: str) -> list[int]:
        return ours(text.replace("<think>", "T"))

    async with ScriptedEndpoint(say, tokenize=ours) as endpoint, client_of(endpoint) as client:
        await client.check_vocabulary(ours, ["<think>", "</think>"])
    async with ScriptedEndpoint(say, tokenize=theirs) as endpoint, client_of(endpoint) as client:
        with pytest.raises(EngineError, match=r"reads '<think>' as \[84\].*serve the one of model\.path"):
            await client.check_vocabulary(ours, ["<think>", "</think>"])
    async with ScriptedEndpoint(say) as endpoint, client_of(endpoint) as client:  # it doesn't tell
        await client.check_vocabulary(ours, ["<think>"])
    async with ScriptedEndpoint(say, tokenize=lambda text: []) as endpoint, client_of(endpoint) as client:
        await client.check_vocabulary(ours, ["<think>"])  # it understood something else
