"""When a failed call is tried again, and how long to wait before it.

Only what is safe to repeat comes here: a generation has no effect but its reply. An environment's step is never
repeated; a rollout that a fault ended is played again from the start, as a new attempt (R3).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from agentrl.config_servers import ServerConfig
from agentrl.errors import EngineError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """Exponential back-off with full jitter, bounded in number and wait."""

    max_tries: int = 4
    wait_s: float = 0.5
    """Longest wait before the second try; it doubles from try to try."""
    max_wait_s: float = 30.0

    @classmethod
    def of(cls, config: ServerConfig) -> RetryPolicy:
        """As configured for a server."""
        return cls(max_tries=config.max_tries, wait_s=config.retry_wait_s, max_wait_s=config.max_retry_wait_s)

    def wait(self, num_failed: int, retry_after_s: float | None) -> float:
        """Seconds to wait after `num_failed` failures: random, so that a thousand clients don't return at once.

        At least what the server asked for, at most `max_wait_s`. Full jitter is from "Exponential Backoff And
        Jitter", AWS Architecture Blog, 2015.
        """
        ceiling = min(self.max_wait_s, self.wait_s * 2.0 ** min(num_failed - 1, 60))
        return min(self.max_wait_s, (retry_after_s or 0.0) + random.uniform(0.0, ceiling))


async def repeat(
    call: Callable[[int], Awaitable[T]], policy: RetryPolicy, on_fault: Callable[[EngineError], None]
) -> T:
    """`call(number)`, again while its EngineError is transient; raises the last one.

    A cancellation has the last error as its cause, so that a time limit doesn't hide why nothing came.
    """
    last: EngineError | None = None
    num_failed = 0
    try:
        while True:
            try:
                return await call(num_failed)
            except EngineError as error:
                on_fault(error)
                num_failed += 1
                if not error.kind.is_transient or num_failed >= policy.max_tries:
                    raise
                last = error
            await asyncio.sleep(policy.wait(num_failed, last.retry_after_s))
    except asyncio.CancelledError as cancelled:
        cancelled.__cause__ = last
        raise


def engine_error_behind(error: BaseException) -> EngineError | None:
    """The engine's error in the chain of causes of a time-out."""
    link: BaseException | None = error
    for _ in range(8):
        if link is None or isinstance(link, EngineError):
            return link
        link = link.__cause__ or link.__context__
    return None
