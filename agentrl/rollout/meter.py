"""What engines say of themselves while rollouts are played: how full they are, and what their prefix caches save.

The source is vLLM's /metrics, in Prometheus' text form. An engine without it gives no figures, and a look that fails
is left out: nothing here can hurt a run.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from agentrl.errors import EngineError

LOOK_EVERY_S = 1.0
LOOK_TIMEOUT_S = 2.0
GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
}
"""What is looked at now and then. Requests are summed over engines; `kv_usage` (0..1) is the fullest one's."""
COUNTERS = {
    "vllm:prefix_cache_queries_total": "num_prefix_query_tokens",
    "vllm:prefix_cache_hits_total": "num_prefix_hit_tokens",
    "vllm:num_preemptions_total": "num_preemptions",
    "vllm:generation_tokens_total": "num_generated_tokens",
}
"""What only grows, but for a server that starts anew. Summed over engines."""
_LINE = re.compile(r"^(vllm:\w+)(?:\{.*\})? ([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=\s|$)", re.MULTILINE)


class Metered(Protocol):
    """An engine's client."""

    async def metrics(self) -> str | None:
        """Prometheus' text, or None where there is none. Raises EngineError."""
        ...


@asynccontextmanager
async def metered(engines: Sequence[Metered], every_s: float = LOOK_EVERY_S) -> AsyncIterator[dict[str, float]]:
    """A dict that is filled when the block ends well: the growth of each counter, mean and maximum of each gauge over
    looks `every_s` apart (absent in a block that is shorter). It stays empty where no engine tells."""
    figures: dict[str, float] = {}
    meter = _Meter(engines)
    await meter.look()
    meter.gauges.clear()  # nothing runs yet
    watching = asyncio.create_task(meter.watch(every_s))
    try:
        yield figures
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    figures |= meter.means_and_maxima()  # without the last look: nothing runs any more
    await meter.look()
    figures |= meter.growth


class _Meter:
    """All looks at the engines together."""

    def __init__(self, engines: Sequence[Metered]) -> None:
        self.engines = engines
        self.gauges: defaultdict[str, list[float]] = defaultdict(list)
        """One value for each look, over all engines."""
        self.growth: dict[str, float] = {}
        self._counters: list[dict[str, float]] = [{} for _ in engines]
        """Of each engine, when it last told."""

    async def watch(self, every_s: float) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """Look at all engines at once."""
        together: dict[str, float] = {}
        for number, text in enumerate(await asyncio.gather(*map(_ask, self.engines))):
            gauges, counters = read(text)
            for name, value in gauges.items():
                _add(together, name, value)
            self._grow(self._counters[number], counters)
        for name, value in together.items():
            self.gauges[name].append(value)

    def _grow(self, before: dict[str, float], now: dict[str, float]) -> None:
        for name, value in now.items():
            last = before.get(name, value)
            # A server that was started anew counts from 0.
            self.growth[name] = self.growth.get(name, 0.0) + (value - last if value >= last else value)
            before[name] = value

    def means_and_maxima(self) -> dict[str, float]:
        """Of the gauges, over the looks so far."""
        figures: dict[str, float] = {}
        for name, values in self.gauges.items():
            figures |= {f"{name}_mean": sum(values) / len(values), f"{name}_max": max(values)}
        return figures


def read(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Gauges and counters by our names, over all engines that one server has behind it."""
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    for metric, number in _LINE.findall(text):
        if metric in GAUGES:
            _add(gauges, GAUGES[metric], float(number))
        elif metric in COUNTERS:
            _add(counters, COUNTERS[metric], float(number))
    return gauges, counters


def _add(values: dict[str, float], name: str, value: float) -> None:
    before = values.get(name, 0.0)
    values[name] = max(before, value) if name == "kv_usage" else before + value


async def _ask(engine: Metered) -> str:
    """What it tells; nothing where it doesn't."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await engine.metrics() or ""
    except (EngineError, TimeoutError):
        return ""
