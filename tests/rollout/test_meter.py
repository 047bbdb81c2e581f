"""What engines say of themselves over a block: gauges, counters, several engines, and looks that fail."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.errors import EngineError
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.meter import metered, read
from agentrl.testing.endpoint import Reply, ScriptedEndpoint

TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b{c}"} 3.0
vllm:num_requests_running{engine="1",model_name="a b{c}"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0"} 1.5e+06
vllm:prefix_cache_hits_total{engine="0"} 64.0
vllm:prefix_cache_hits_created{engine="0"} 1.76e+09
vllm:num_preemptions_total{engine="0"} 0.0
vllm:generation_tokens_total{engine="0"} 12.0
"""


def test_the_text_is_read_over_all_labels() -> None:
    gauges, counters = read(TEXT)
    assert gauges == {"running": 7.0, "waiting": 1.0, "kv_usage": 0.5}
    assert counters == {
        "num_prefix_query_tokens": 1.5e6,
        "num_prefix_hit_tokens": 64.0,
        "num_preemptions": 0.0,
        "num_generated_tokens": 12.0,
    }
    for text in (
        "<html>",
        "vllm:num_requests_running{} abc",
        "vllm:num_requests_running NaN",
        "vllm:kv_cache_usage_perc",
    ):
        assert read(text) == ({}, {})


class Telling:
    """Says its looks one after the other, the last one for ever: (running, generated tokens), or an error."""

    def __init__(self, *looks: tuple[int, int] | Exception) -> None:
        self.looks = list(looks)

    async def metrics(self) -> str | None:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return f"vllm:num_requests_running{{}} {look[0]}\nvllm:generation_tokens_total{{}} {look[1]}\n"


async def figures_of(*engines: Telling, looks: int = 3) -> dict[str, float]:
    async with metered(engines, every_s=0.01) as figures:
        while any(len(engine.looks) > looks for engine in engines):
            await asyncio.sleep(0.001)
    return figures


async def test_gauges_are_of_the_looks_between_and_counters_of_the_whole_block() -> None:
    engine = Telling((50, 100), (2, 110), (4, 120), (60, 130))
    assert await figures_of(engine, looks=1) == {
        "running_mean": 3.0,
        "running_max": 4.0,
        "num_generated_tokens": 30.0,
    }


async def test_engines_are_summed() -> None:
    left, right = Telling((0, 0), (2, 10), (0, 12)), Telling((0, 5), (6, 25), (0, 25))
    figures = await figures_of(left, right, looks=1)
    assert figures == {"running_mean": 8.0, "running_max": 8.0, "num_generated_tokens": 32.0}


async def test_a_server_that_starts_anew_counts_from_nothing() -> None:
    engine = Telling((0, 100), (1, 150), EngineError("down"), (1, 7), (0, 9))
    assert (await figures_of(engine, looks=1))["num_generated_tokens"] == 59.0


async def test_an_engine_without_figures_hurts_nobody() -> None:
    assert await figures_of(Telling(EngineError("broken"))) == {}
    async with ScriptedEndpoint(lambda seen: Reply(ids=[1])) as endpoint, HttpClient(endpoint.url) as client:
        assert await client.metrics() is None
        async with metered([client], every_s=0.001) as figures:
            await asyncio.sleep(0.02)
    assert figures == {}


async def test_an_error_inside_ends_the_looking_at_once() -> None:
    engine = Telling((1, 1))
    with pytest.raises(ValueError, match="inside"):
        async with metered([engine], every_s=0.001):
            raise ValueError("inside")
    assert {task.get_name() for task in asyncio.all_tasks()} == {asyncio.current_task().get_name()}  # type: ignore[union-attr]
