"""The policy's engine as rollouts see it: one or more replicas behind one client.

Each conversation (a rollout) begins on the replica that has the fewest requests in flight, and stays with it, where
its prefix is cached. When that replica fails in a way that may pass, the next try goes to another, and the
conversation stays there. A single replica goes the same way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient, ReplyGate
from agentrl.rollout.retry import RetryPolicy, repeat

REST_S = 10.0
"""Seconds for which a replica that failed is the last choice."""


@dataclass(kw_only=True, slots=True)
class Replica:
    """One server, as the fleet sees it."""

    client: HttpClient
    num_running: int = 0
    """Requests in flight."""
    is_lost: bool = False
    """It is known to have died; it is asked only where all are lost, so that an error says why."""
    failed_at: float = -REST_S
    """When a request to it last failed, on the clock of `time.monotonic`."""

    @property
    def cost(self) -> tuple[bool, bool, int]:
        """The replica with the least is chosen."""
        return self.is_lost, time.monotonic() - self.failed_at < REST_S, self.num_running


class Fleet:
    """The replicas. All their clients hold replies back by `gate` while weights change (V2)."""

    def __init__(self, clients: Sequence[HttpClient], gate: ReplyGate, retry: RetryPolicy | None = None) -> None:
        self.replicas = [Replica(client=client) for client in clients]
        self.faults: Counter[EngineFault] = Counter()
        """Failed tries by kind, also those that a later try made good."""
        self.retry = retry or RetryPolicy()
        self.gate = gate

    @property
    def clients(self) -> list[HttpClient]:
        """One for each replica."""
        return [replica.client for replica in self.replicas]

    @property
    def max_model_len(self) -> int:
        """The context window that every replica has, in tokens."""
        return min(replica.client.max_model_len or 0 for replica in self.replicas)

    def conversation(self) -> Conversation:
        """An InferenceClient for one rollout."""
        return Conversation(self)

    def choose(self, failed: Replica | None = None) -> Replica:
        """The replica that costs least; not the one that has just failed, unless no other is alive."""
        others = [replica for replica in self.replicas if replica is not failed and not replica.is_lost]
        return min(others or self.replicas, key=lambda replica: replica.cost)

    async def close(self) -> None:
        """Close all connections. May be called more than once."""
        for replica in self.replicas:
            await replica.client.close()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """See ReplyGate.hold."""
        with self.gate.hold():
            yield


class Conversation:
    """The calls of one rollout, one after the other. An InferenceClient."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._replica: Replica | None = None

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        """See InferenceClient. A try that failed in a way that may pass is made again, where there is another replica
        at that one; each try has a request id of its own. Raises what HttpClient.generate_once raises."""

        async def attempt(number: int) -> Generation:
            return await self._ask(ids, sampling, f"{request_id}-try{number}" if number else request_id)

        return await repeat(attempt, self._fleet.retry, self._count)

    async def _ask(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        if self._replica is None or self._replica.is_lost:
            self._replica = self._fleet.choose()
        replica = self._replica
        replica.num_running += 1
        try:
            return await replica.client.generate_once(ids, sampling, request_id)
        except EngineError as error:
            if error.kind.is_transient:
                replica.failed_at = time.monotonic()
                self._replica = self._fleet.choose(failed=replica)
            raise
        finally:
            replica.num_running -= 1

    def _count(self, error: EngineError) -> None:
        self._fleet.faults[error.kind] += 1
