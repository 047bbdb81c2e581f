"""Start, death, restart and stop."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from transformers import Qwen2ForCausalLM

from agentrl.engine.embedded import EmbeddedEngine
from agentrl.errors import EngineError, ModelError
from tests.engine.wire import GENERATE, Wire, wait_for


async def _health(engine: EmbeddedEngine) -> int:
    async with aiohttp.ClientSession() as session, session.get(engine.url + "/health") as response:
        return response.status


def _small(folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine(folder, threads=1, max_batch_tokens=64, cache_tokens=1024)


class Bomb(torch.nn.Module):
    """A layer that fails once."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.armed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.armed:
            self.armed = False
            raise RuntimeError("bomb in the norm")
        return self.inner(*args, **kwargs)


async def test_an_engine_that_was_stopped_lets_go_of_its_model(model: Qwen2ForCausalLM, model_folder: Path) -> None:
    async with _small(model_folder) as engine:
        await Wire(engine).generate([5, 6], max_tokens=2, seed=1)
        served = weakref.ref(engine.loop._manager.model)
    assert served() is not None
    del engine
    for _ in range(100):  # the thread in which it was stopped drops what it did a moment after that is awaited
        gc.collect()
        if served() is None:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"held by {gc.get_referrers(served())}")


async def test_a_dead_loop_is_restarted_once(model: Qwen2ForCausalLM, model_folder: Path) -> None:
    async with _small(model_folder) as engine:
        wire = Wire(engine)
        served = engine.loop._manager.model.model
        served.norm = bomb = Bomb(served.norm)
        expected = await wire.generate([5, 6], max_tokens=5, seed=1)
        for death in (1, 2):
            tasks = [asyncio.create_task(wire.post(GENERATE, _long(f"r{i}"))) for i in range(3)]
            for index in range(3):
                await wire.wait_sampled(f"r{index}", 2)
            bomb.armed = True
            for status, answer in await asyncio.gather(*tasks):
                assert status == 500
                assert "bomb in the norm" in answer["error"]["message"]
            if death == 1:
                await wait_for(lambda: engine.loop._restarts_left == 0)
                assert (await wire.generate([5, 6], max_tokens=5, seed=1))["token_ids"] == expected["token_ids"]
                assert await _health(engine) == 200
                assert engine.loop.free_cache_share == 1
        await wait_for(lambda: engine.health() is not None)
        assert await _health(engine) == 503
        status, answer = await wire.post(GENERATE, _long("late"))
        assert status == 503
        assert "bomb in the norm" in answer["error"]["message"]
        with pytest.raises(EngineError, match="bomb in the norm"):
            await engine.score([1], [2])


def _long(request_id: str) -> dict[str, Any]:
    return {"token_ids": [5, 6], "request_id": request_id, "sampling_params": {"max_tokens": 400, "ignore_eos": True}}


async def test_stop_ends_open_requests_as_abort(model: Qwen2ForCausalLM, model_folder: Path) -> None:
    engine = _small(model_folder)
    engine.start()
    wire = Wire(engine)
    task = asyncio.create_task(wire.post(GENERATE, _long("open")))
    await wire.wait_sampled("open", 3)
    await asyncio.to_thread(engine.stop)
    status, answer = await task
    assert status == 200
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "abort"
    assert 3 <= len(choice["token_ids"]) == len(choice["logprobs"]["content"]) < 400
    engine.stop()


async def test_nan_weights_fail_the_request_and_not_the_loop(model: Qwen2ForCausalLM, model_folder: Path) -> None:
    async with _small(model_folder) as engine:
        wire = Wire(engine)
        good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        bad = {**good, "model.norm.weight": torch.full_like(good["model.norm.weight"], torch.nan)}
        engine.load(1, bad.items())
        status, answer = await wire.post(GENERATE, _long("nan"))
        assert status == 500
        assert "nan under version 1" in answer["error"]["message"]
        engine.load(2, good.items())
        assert (await wire.generate([5, 6], max_tokens=3))["weight_versions"] == [
            {"version": "2", "start": 0, "end": 3}
        ]


def test_start_leaves_the_global_random_state(model: Qwen2ForCausalLM, model_folder: Path) -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    engine = _small(model_folder)
    engine.start()
    engine.stop()
    engine.stop()
    assert torch.equal(torch.get_rng_state(), before)


def test_stock_attention_is_untouched(model: Qwen2ForCausalLM, engine: EmbeddedEngine) -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert model.config._attn_implementation == "sdpa"


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        EmbeddedEngine(tmp_path).start()


EXIT = """
import sys
from agentrl.engine.embedded import EmbeddedEngine
engine = EmbeddedEngine(sys.argv[1], threads=1, max_batch_tokens=64, cache_tokens=1024)
engine.start()
if sys.argv[2] == "raise":
    raise SystemExit(7)
"""


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 7)])
def test_the_interpreter_exits_without_stop(model: Qwen2ForCausalLM, model_folder: Path, how: str, code: int) -> None:
    command = [sys.executable, "-c", EXIT, str(model_folder), how]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run(command, timeout=120, env=environment, capture_output=True).returncode == code
