"""Several replicas behind one client: who is asked, who is left alone, and that replies of all are held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.fleet import Conversation, Fleet
from agentrl.rollout.http_client import HttpClient, ReplyGate
from agentrl.rollout.retry import RetryPolicy
from agentrl.testing.endpoint import Fault, Reply, ScriptedEndpoint

SAMPLING = SamplingParams(max_tokens=3, temperature=1.0, seed=11)


@dataclass
class Servers:
    endpoints: list[ScriptedEndpoint]
    fleet: Fleet

    @property
    def counts(self) -> list[int]:
        """Requests that each has answered."""
        return [len(endpoint.seen) for endpoint in self.endpoints]


@asynccontextmanager
async def servers(*faults: Fault | None, max_tries: int = 4) -> AsyncIterator[Servers]:
    """One endpoint per fault that it always shows."""
    async with AsyncExitStack() as stack:
        gate = ReplyGate()
        endpoints, clients = [], []
        for fault in faults:
            endpoint = ScriptedEndpoint(lambda seen: Reply(ids=[7, 2]), fault=fault)
            endpoints.append(await stack.enter_async_context(endpoint))
            timeout_s = 0.3 if fault == "timeout" else 30.0
            name = f"engine-{len(clients)}"
            clients.append(HttpClient(endpoint.url, name=name, gate=gate, request_timeout_s=timeout_s))
        fleet = Fleet(clients, gate, RetryPolicy(max_tries=max_tries, wait_s=0.002))
        stack.push_async_callback(fleet.close)
        yield Servers(endpoints, fleet)


async def ask(conversation: Conversation, request_id: str = "t-0") -> str:
    """The engine that answers."""
    return (await conversation.generate([1, 2], SAMPLING, request_id)).engine


async def test_a_conversation_stays_with_the_replica_that_holds_its_prefix() -> None:
    async with servers(None, None, None) as on:
        talks = [on.fleet.conversation() for _ in range(6)]
        first = await asyncio.gather(*(ask(talk) for talk in talks))
        for _ in range(3):
            assert [await ask(talk) for talk in talks] == first
        assert on.counts == [8, 8, 8]  # those that began together were shared out evenly


async def test_a_new_conversation_goes_where_the_fewest_requests_are_in_flight() -> None:
    async with servers(None, None) as on:
        with on.fleet.hold():  # they wait at the gate, and nothing is sent
            running = [asyncio.create_task(ask(on.fleet.conversation())) for _ in range(3)]
            await asyncio.sleep(0.05)
            assert sorted(replica.num_running for replica in on.fleet.replicas) == [1, 2]
            late = asyncio.create_task(ask(on.fleet.conversation()))
            await asyncio.sleep(0.05)
            assert [replica.num_running for replica in on.fleet.replicas] == [2, 2]
            assert on.counts == [0, 0] and not any(task.done() for task in [*running, late])
        await asyncio.gather(*running, late)
        assert on.counts == [2, 2]


@pytest.mark.parametrize("fault", ["500", "429", "reset", "timeout", "garbage"])
async def test_a_replica_that_fails_is_left_and_its_conversations_stay_where_they_went(fault: Fault) -> None:
    async with servers(fault, None) as on:
        talk = on.fleet.conversation()
        talk_of_another = on.fleet.conversation()
        assert {await ask(talk), await ask(talk), await ask(talk_of_another)} == {"engine-1"}
        assert on.fleet.faults.total() == 1  # the first try; afterwards nobody began on the one that had failed
        assert [seen.request_id for seen in on.endpoints[1].seen] == ["t-0-try1", "t-0", "t-0"]


async def test_what_can_not_pass_is_not_tried_elsewhere() -> None:
    async with servers("overflow", None) as on:
        with pytest.raises(EngineError, match="t-0"):
            await ask(on.fleet.conversation())
        assert on.counts[1] == 0 and on.fleet.faults == {EngineFault.REFUSED: 1}


async def test_a_lost_replica_is_not_asked_until_it_is_found_again() -> None:
    async with servers(None, None) as on:
        talk = on.fleet.conversation()
        assert await ask(talk) == "engine-0"
        on.fleet.replicas[0].is_lost = True
        assert await ask(talk) == "engine-1"
        assert await ask(on.fleet.conversation()) == "engine-1"
        on.fleet.replicas[0].is_lost = False
        assert await ask(on.fleet.conversation()) == "engine-0"
        assert await ask(talk) == "engine-1"


async def test_where_all_fail_the_tries_end_with_the_last_ones_error() -> None:
    async with servers("500", "500", max_tries=3) as on:
        with pytest.raises(EngineError, match=r"request 't-0-try2' .* HTTP 500"):
            await ask(on.fleet.conversation())
        assert on.fleet.faults == {EngineFault.SERVER: 3}


async def test_an_only_replica_is_tried_again_where_it_is() -> None:
    async with servers("500", max_tries=2) as on:
        with pytest.raises(EngineError, match="t-0-try1"):
            await ask(on.fleet.conversation())
        assert on.fleet.faults == {EngineFault.SERVER: 2}


async def test_the_shortest_window_counts() -> None:
    async with servers(None, None) as on:
        on.endpoints[1].max_model_len = 100
        for replica in on.fleet.replicas:
            await replica.client.open()
        assert on.fleet.max_model_len == 100
