"""Ends, seeds, refusals and what a bad request does to its neighbours."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
import torch

from agentrl.engine.embedded import EmbeddedEngine
from tests.engine.models import EOS, VOCAB, WINDOW, prompts
from tests.engine.wire import GENERATE, Wire, logprobs_of, wait_for

OK = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2}}


def _with(**sampling: Any) -> dict[str, Any]:
    return {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2, **sampling}}


BAD: list[tuple[str, Any, str]] = [
    ("not json", b"{", "body"),
    ("no object", [1], "body"),
    ("no prompt", {"sampling_params": {}}, "token_ids"),
    ("empty prompt", {**OK, "token_ids": []}, "token_ids"),
    ("text prompt", {**OK, "token_ids": "hello"}, "token_ids"),
    ("id out of vocabulary", {**OK, "token_ids": [1, VOCAB]}, "token_ids"),
    ("negative id", {**OK, "token_ids": [1, -1]}, "token_ids.1"),
    ("id as text", {**OK, "token_ids": [1, "2"]}, "token_ids.1"),
    ("id as bool", {**OK, "token_ids": [1, True]}, "token_ids.1"),
    ("batch of prompts", {**OK, "token_ids": [[1, 2], [3]]}, "token_ids.0"),
    ("unknown key", {**OK, "priority": 1}, "priority"),
    ("stream", {**OK, "stream": True}, "stream"),
    ("text output", {**OK, "output_mode": "text"}, "output_mode"),
    ("other model", {**OK, "model": "gpt"}, "model"),
    ("request id is a number", {**OK, "request_id": 4}, "request_id"),
    ("unknown sampling key", _with(temprature=1.0), "sampling_params.temprature"),
    ("several choices", _with(n=2), "sampling_params.n"),
    ("stop strings", _with(stop=["\n"]), "sampling_params.stop"),
    ("other candidates", _with(logprobs=3), "sampling_params.logprobs"),
    ("negative temperature", _with(temperature=-1.0), "sampling_params.temperature"),
    ("temperature near 0", _with(temperature=1e-9), "sampling_params.temperature"),
    ("temperature as text", _with(temperature="1"), "sampling_params.temperature"),
    ("temperature NaN", _with(temperature=float("nan")), "sampling_params.temperature"),
    ("top_p 0", _with(top_p=0.0), "sampling_params.top_p"),
    ("top_k -2", _with(top_k=-2), "sampling_params.top_k"),
    ("seed too large", _with(seed=2**63), "sampling_params.seed"),
    ("stop id out of vocabulary", _with(stop_token_ids=[VOCAB]), "sampling_params.stop_token_ids"),
    ("no tokens", _with(max_tokens=0), "sampling_params.max_tokens"),
    ("max_tokens as float", _with(max_tokens=1.5), "sampling_params.max_tokens"),
    ("past the window", _with(max_tokens=WINDOW - 2), "sampling_params.max_tokens"),
    ("prompt fills the window", {**OK, "token_ids": [5] * WINDOW}, "sampling_params.max_tokens"),
    ("forced out of vocabulary", _with(trace_decode_token_ids=[VOCAB, 1]), "sampling_params.trace_decode_token_ids"),
    ("forced with top_k", _with(trace_decode_token_ids=[1, 2], top_k=3), "sampling_params.trace_decode_token_ids"),
    ("forced of other length", _with(trace_decode_token_ids=[1, 2, 3]), "sampling_params.max_tokens"),
]


@pytest.mark.parametrize(("body", "field"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_bad_request_is_refused_by_field(wire: Wire, body: Any, field: str) -> None:
    status, answer = await wire.post(GENERATE, body)
    assert status == 400, answer
    assert answer["error"]["param"] == field
    assert field in answer["error"]["message"]


async def test_bad_requests_leave_neighbours_unharmed(wire: Wire) -> None:
    async def alone() -> dict[str, Any]:
        return await wire.generate([9, 8, 7], max_tokens=60, seed=1, ignore_eos=True)

    expected = await alone()
    good, *bad = await asyncio.gather(alone(), *(wire.post(GENERATE, case[1]) for case in BAD))
    assert {status for status, _ in bad} == {400}
    assert good["token_ids"] == expected["token_ids"]


async def test_live_request_id_is_refused_and_free_again_afterwards(wire: Wire) -> None:
    task = asyncio.create_task(wire.generate([5, 6], request_id="one", max_tokens=400, ignore_eos=True))
    await wire.wait_sampled("one", 1)
    status, answer = await wire.post(GENERATE, {**OK, "request_id": "one"})
    assert (status, answer["error"]["param"]) == (400, "request_id")
    assert len((await task)["token_ids"]) == 400
    await wire.generate([5, 6], request_id="one", max_tokens=1)


async def test_key_is_required_except_for_health(engine: EmbeddedEngine, wire: Wire) -> None:
    assert engine.url.startswith("http://127.0.0.1:")
    async with aiohttp.ClientSession() as session:
        for path, status in [("/v1/models", 401), ("/health", 200), ("/nowhere", 401)]:
            async with session.get(engine.url + path) as response:
                assert response.status == status, path
    assert (await wire.post(GENERATE, OK, key="wrong"))[0] == 401
    assert (await wire.post(GENERATE, OK, key="ключ"))[0] == 401
    assert (await wire.post("/nowhere", OK))[0] == 404


async def test_other_interfaces_are_not_served(engine: EmbeddedEngine) -> None:
    import socket

    port = int(engine.url.rsplit(":", 1)[1])
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # would be in use, were the server bound to all interfaces


async def test_models_gives_the_window(engine: EmbeddedEngine) -> None:
    headers = {"Authorization": f"Bearer {engine.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(engine.url + "/v1/models") as response,
    ):
        (card,) = (await response.json())["data"]
    assert (card["id"], card["max_model_len"]) == ("embedded", WINDOW)


async def test_stop_id_ends_the_reply_and_is_in_it(wire: Wire) -> None:
    free = await wire.generate([7, 7, 9], max_tokens=30, seed=4, ignore_eos=True)
    stop_id = free["token_ids"][10]
    end = free["token_ids"].index(stop_id) + 1
    cut = await wire.generate([7, 7, 9], max_tokens=30, seed=4, ignore_eos=True, stop_token_ids=[stop_id])
    assert cut["token_ids"] == free["token_ids"][:end]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop_id)
    assert logprobs_of(cut) == pytest.approx(logprobs_of(free)[:end], abs=1e-5)
    assert (free["finish_reason"], free["stop_reason"]) == ("length", None)


async def test_the_models_stop_id_counts_unless_ignored(wire: Wire) -> None:
    for seed in range(40):  # the stop id comes once in a while
        free = await wire.generate([3], max_tokens=60, seed=seed, ignore_eos=True)
        if EOS in free["token_ids"][:-1]:
            break
    end = free["token_ids"].index(EOS) + 1
    assert free["finish_reason"] == "length"
    cut = await wire.generate([3], max_tokens=60, seed=seed)
    assert (cut["token_ids"], cut["finish_reason"]) == (free["token_ids"][:end], "stop")


async def test_completions_gives_ids_and_logprobs(wire: Wire) -> None:
    sampling: dict[str, Any] = {"max_tokens": 5, "seed": 3, "ignore_eos": True}
    body = {"prompt": [5, 6, 7], "logprobs": 0, "return_token_ids": True, **sampling}
    status, answer = await wire.post("/v1/completions", body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    direct = await wire.generate([5, 6, 7], **sampling)
    assert choice["token_ids"] == direct["token_ids"]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(logprobs_of(direct), abs=1e-5)
    status, answer = await wire.post("/v1/completions", {"prompt": "text"})
    assert (status, answer["error"]["param"]) == (400, "prompt")


async def test_seeds_decide_whatever_the_neighbours_and_the_order(wire: Wire) -> None:
    asked = prompts([12, 40, 3, 90, 21, 60])

    async def one(index: int, delay_s: float) -> list[int]:
        await asyncio.sleep(delay_s)
        ids: list[int] = (await wire.generate(asked[index], max_tokens=30, seed=index, ignore_eos=True))["token_ids"]
        return ids

    burst = await asyncio.gather(*(one(i, 0.0) for i in range(6)))
    staggered = await asyncio.gather(*(one(i, 0.02 * (5 - i)) for i in range(6)))
    alone = [await one(i, 0.0) for i in range(6)]
    assert burst == staggered == alone
    other = await wire.generate(asked[3], max_tokens=30, seed=77, ignore_eos=True)
    assert other["token_ids"] != burst[3]


async def test_global_random_state_is_neither_read_nor_changed(wire: Wire) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = await wire.generate([4, 4], max_tokens=20, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert (await wire.generate([4, 4], max_tokens=20, seed=1))["token_ids"] == first["token_ids"]


async def test_disconnect_frees_the_cache(engine: EmbeddedEngine, wire: Wire) -> None:
    task = asyncio.create_task(wire.generate([5] * 60, request_id="gone", max_tokens=400, ignore_eos=True))
    await wire.wait_sampled("gone", 3)
    assert engine.loop.free_cache_share < 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_for(lambda: not engine.loop.live_ids)
    await wire.generate([5], max_tokens=1)  # the loop drops cancelled requests at its next step
    assert engine.loop.free_cache_share == 1
