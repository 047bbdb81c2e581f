"""The faulty proxy: what goes through, what fails and how, and an engine that has moved."""

from __future__ import annotations

import pytest

from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.retry import RetryPolicy
from agentrl.testing.endpoint import FAULTS, Fault, ScriptedEndpoint
from agentrl.testing.proxy import GENERATE, FaultyProxy
from tests.engine.test_client_faults import KINDS, SAMPLING, say

ONCE = RetryPolicy(max_tries=1)


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_is_as_the_scripted_endpoints(fault: Fault) -> None:
    async with (
        ScriptedEndpoint(say, key="hush") as endpoint,
        FaultyProxy(endpoint.url, fault=fault) as proxy,
        HttpClient(proxy.url, key="hush", retry=ONCE, request_timeout_s=0.3) as client,
    ):
        with pytest.raises(EngineError) as caught:
            await client.generate([1, 2], SAMPLING, "r")
    assert caught.value.kind is KINDS[fault]
    # What fails after the work has reached the engine, what fails before hasn't.
    assert len(endpoint.seen) == (fault not in ("500", "429", "reset", "timeout", "overflow"))


async def test_without_faults_it_isnt_seen_and_the_engine_may_move() -> None:
    async with ScriptedEndpoint(say, key="hush") as first, ScriptedEndpoint(say, key="hush") as second:
        async with FaultyProxy(first.url) as proxy, HttpClient(proxy.url, key="hush", retry=ONCE) as client:
            assert (await client.generate([1], SAMPLING, "a")).ids == [7, 8, 2]
            await first.go_down()
            with pytest.raises(EngineError) as caught:
                await client.generate([1], SAMPLING, "b")
            assert caught.value.kind is EngineFault.CONNECTION
            proxy.target = second.url
            assert (await client.generate([1], SAMPLING, "c")).ids == [7, 8, 2]
        async with FaultyProxy(second.url) as proxy:
            with pytest.raises(EngineError, match="HTTP 401"):
                async with HttpClient(proxy.url, key="wrong"):
                    raise AssertionError("opened")
    assert [seen.request_id for seen in first.seen] == ["a"]
    assert [seen.request_id for seen in second.seen] == ["c"]


async def test_hidden_paths_are_forbidden() -> None:
    async with (
        ScriptedEndpoint(say) as endpoint,
        FaultyProxy(endpoint.url, hidden=(GENERATE,)) as proxy,
        HttpClient(proxy.url, retry=ONCE) as client,
    ):
        with pytest.raises(EngineError, match="/v1/completions: HTTP 404"):
            await client.generate([1], SAMPLING, "a")
