"""A publish is proved, or it is an error that names what is wrong (V2)."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from agentrl.engine.weights import LoadReport
from agentrl.errors import EngineError, PublishError
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.sync.base import Canary
from agentrl.sync.memory import MemorySync
from tests.engine.models import forward_logits, picked
from tests.engine.wire import Wire
from tests.sync.conftest import Pair

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"
GATE, UP = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up"))


class Receiver:
    """The real engine behind a method that misbehaves; subclasses override what goes wrong."""

    def __init__(self, pair: Pair) -> None:
        self.inner = pair.engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Ignores(Receiver):
    """Says that it loaded, puts the version in force, and copies nothing."""

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
        self.inner.loop.version = version
        return LoadReport(loaded=tuple(name for name, _ in tensors), missing=(), unexpected=())


class Swaps(Receiver):
    """Mixes up two tensors of one shape."""

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
        sent = dict(tensors)
        return self.inner.load(version, {**sent, GATE: sent[UP], UP: sent[GATE]}.items())


class Stale(Receiver):
    """Loads the weights, and stamps what they sample with the old version."""

    def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
        report = self.inner.load(version, tensors)
        self.inner.loop.version = version - 1
        return report

    version = 1


async def _publish(pair: Pair, tensors: dict[str, torch.Tensor], canary: Canary, receiver: Any = None) -> None:
    sync = MemorySync()
    sync.connect(pair.trainer, [receiver or pair.engine])
    await sync.publish(1, iter(tensors.items()), canary, pair.client)


async def _generate(pair: Pair, request_id: str, num: int = 5) -> Generation:
    return await pair.client.generate([5, 6, 7], SamplingParams(max_tokens=num, temperature=1.0, seed=3), request_id)


async def test_a_large_update_is_proved_by_the_canary(pair: Pair) -> None:
    canary = pair.update(0.02)
    report = await pair.sync.publish(1, iter(pair.tensors().items()), canary, pair.client)
    assert (report.proof, report.version) == ("canary", 1)
    assert report.canary_delta < 1e-4 < report.significance
    assert report.bytes == sum(tensor.numel() * 4 for tensor in pair.tensors().values())
    scored, versions = await pair.engine.score(canary.prompt_ids, canary.forced_ids)
    assert scored == pytest.approx(pair.logprobs(), abs=1e-5)
    assert versions == [1] * 6


async def test_a_small_update_is_proved_by_checksums(pair: Pair) -> None:
    canary = pair.update(1e-7)
    report = await pair.sync.publish(1, iter(pair.tensors().items()), canary, pair.client)
    assert report.proof == "checksums"
    assert report.significance < 10


async def test_a_tied_name_may_be_left_out(pair: Pair) -> None:
    canary = pair.update(0.02)
    tensors = pair.tensors()
    tied = tensors[HEAD].data_ptr() == tensors[EMBED].data_ptr()
    del tensors[HEAD]
    if tied:
        await _publish(pair, tensors, canary)
        assert pair.engine.checksums()[HEAD] == pair.engine.checksums()[EMBED]
    else:
        with pytest.raises(PublishError, match=f"missing from what was sent: {HEAD}"):
            await _publish(pair, tensors, canary)


async def test_an_untied_head_is_named(pair: Pair) -> None:
    canary = pair.update(0.02)
    tensors = pair.tensors()
    tied = tensors[HEAD].data_ptr() == tensors[EMBED].data_ptr()
    if tied:  # the trainer's head has come loose; the engine can hold only one of the two
        tensors[HEAD] = tensors[HEAD] + 0.01
        with pytest.raises(PublishError, match=f"other bytes than were sent for {EMBED}.*tying"):
            await _publish(pair, tensors, canary)
    else:  # the trainer has tied what the engine holds apart: the bytes agree, the canary's model doesn't
        tensors[HEAD] = tensors[EMBED]
        with pytest.raises(PublishError, match="canary's logprobs differ"):
            await _publish(pair, tensors, canary)


@pytest.mark.parametrize(("receiver", "named"), [(Ignores, "embed_tokens"), (Swaps, GATE), (Swaps, UP)])
async def test_wrong_bytes_are_named_however_small_the_update(pair: Pair, receiver: Any, named: str) -> None:
    for scale in (1e-6, 0.02):
        canary = pair.update(scale)
        with pytest.raises(PublishError, match=f"did not take version 1.*other bytes.*{named}"):
            await _publish(pair, pair.tensors(), canary, receiver(pair))


async def test_a_stale_stamp_is_named(pair: Pair) -> None:
    canary = pair.update(0.02)
    with pytest.raises(PublishError, match=r"version 1: the canary's ids are stamped with version \[0\]"):
        await _publish(pair, pair.tensors(), canary, Stale(pair))


def _missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[GATE]


def _extra(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.value_head.weight"] = torch.zeros(1)


def _renamed(tensors: dict[str, torch.Tensor]) -> None:
    tensors["module." + GATE] = tensors.pop(GATE)


def _reshaped(tensors: dict[str, torch.Tensor]) -> None:
    tensors[GATE] = tensors[GATE].T


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_missing, f"missing from what was sent: {GATE}"),
        (_extra, "unexpected by the engine: model.value_head.weight"),
        (_renamed, f"missing from what was sent: {GATE}; unexpected by the engine: module.{GATE}"),
        (_reshaped, rf"of another shape: {GATE}: sent \[64, 128\], held \[128, 64\]"),
    ],
)
async def test_wrong_names_and_shapes_change_nothing(pair: Pair, change: Any, message: str) -> None:
    canary, before = pair.update(0.02), pair.engine.checksums()
    tensors = pair.tensors()
    change(tensors)
    with pytest.raises(PublishError, match=message):
        await _publish(pair, tensors, canary)
    assert pair.engine.checksums() == before
    assert pair.engine.version == 0


async def test_after_a_failure_nothing_is_served_until_a_publish_succeeds(pair: Pair) -> None:
    canary = pair.update(0.02)
    tensors = pair.tensors()
    tensors.pop(GATE)
    with pytest.raises(PublishError):
        await _publish(pair, tensors, canary)
    assert pair.engine.health() is not None
    with pytest.raises(EngineError, match="not proved: engine 'embedded' did not take version 1"):
        await _generate(pair, "refused")
    await _publish(pair, pair.tensors(), canary)
    assert {span.version for span in (await _generate(pair, "served")).spans} == {1}


async def test_a_copy_that_fails_half_way_stops_the_engine(pair: Pair) -> None:
    tensors = pair.tensors()
    tensors[UP] = torch.empty(tensors[UP].shape, device="meta")  # right name and shape, but no bytes
    with pytest.raises(NotImplementedError):
        pair.engine.load(1, tensors.items())
    assert "half way" in str(pair.engine.health())
    assert pair.engine.version == 0
    assert pair.engine.load(1, pair.tensors().items()).complete
    assert pair.engine.health() is None


async def test_replies_are_held_until_the_proof(pair: Pair) -> None:
    canary = pair.update(0.02)
    order: list[str] = []

    class Slow(Receiver):
        async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
            await Wire(self.inner).generate([5], max_tokens=1)  # the engine serves meanwhile
            task = asyncio.create_task(_generate(pair, "early"))
            task.add_done_callback(lambda _: order.append("reply"))
            tasks.append(task)
            await asyncio.sleep(0.3)
            assert not self.inner.loop.live_ids  # it has been answered, and waits at the client
            order.append("proof")
            return await self.inner.score(prompt_ids, forced_ids)

    tasks: list[asyncio.Task[Generation]] = []
    await _publish(pair, pair.tensors(), canary, Slow(pair))
    assert {span.version for span in (await tasks[0]).spans} == {1}
    assert order == ["proof", "reply"]


async def test_held_replies_fail_with_the_publish(pair: Pair) -> None:
    class Breaks(Receiver):
        async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
            tasks.append(asyncio.create_task(_generate(pair, "early")))
            await asyncio.sleep(0.3)
            raise ConnectionError("gone")

    tasks: list[asyncio.Task[Generation]] = []
    canary = pair.update(0.02)
    with pytest.raises(PublishError, match="gone"):
        await _publish(pair, pair.tensors(), canary, Breaks(pair))
    with pytest.raises(EngineError, match=r"request 'early'.*not proved.*gone"):
        await tasks[0]


async def test_update_in_flight_stamps_each_id_with_its_weights(pair: Pair) -> None:
    """V1: old ids keep old stamps and logprobs; new ids are those of new weights over the old keys and values."""
    prompt, wire = [5, 6, 7, 8, 9], Wire(pair.engine)
    sampling = SamplingParams(max_tokens=450, temperature=1.0, seed=2)
    body = {"token_ids": prompt, "request_id": "through", "sampling_params": {"max_tokens": 450, "seed": 2}}
    body["sampling_params"]["ignore_eos"] = True  # type: ignore[index]
    task = asyncio.create_task(wire.post("/inference/v1/generate", body))
    await wire.wait_sampled("through", 20)
    with pair.engine.loop.paused():  # a fast machine would finish the request while the canary is made
        cache, old_state = DynamicCache(), {n: t.clone() for n, t in pair.tensors().items()}
        canary = pair.update(0.02)
    await pair.sync.publish(1, iter(pair.tensors().items()), canary, pair.client)
    (choice,) = (await task)[1]["choices"]
    old, new = choice["weight_versions"]
    assert (old["version"], new["version"], old["end"], new["end"]) == ("0", "1", new["start"], sampling.max_tokens)
    ids, cut = choice["token_ids"], old["end"]
    got = torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])

    new_state = {n: t.clone() for n, t in pair.tensors().items()}
    with torch.no_grad():
        pair.trainer.load_state_dict(old_state)
        logits = pair.trainer(torch.tensor([prompt + ids[: cut - 1]]), past_key_values=cache).logits[0]
        before = picked(torch.log_softmax(logits[len(prompt) - 1 :], -1), ids[:cut])
        pair.trainer.load_state_dict(new_state)
        logits = pair.trainer(torch.tensor([ids[cut - 1 : -1]]), past_key_values=cache).logits[0]
        after = picked(torch.log_softmax(logits, -1), ids[cut:])
    assert (got[:cut] - before).abs().max() < 1e-5
    assert (got[cut:] - after).abs().max() < 1e-5
    clean = picked(torch.log_softmax(forward_logits(pair.trainer, prompt, ids), -1), ids)[cut:]
    assert (clean - after).abs().max() > 1e-3  # so that the test can tell the two apart


async def test_the_weights_hash_is_that_of_the_trainers_parameters(pair: Pair) -> None:
    await _publish(pair, pair.tensors(), pair.update(0.02))
    digest = hashlib.sha256()
    for name, tensor in pair.trainer.named_parameters():
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().numpy().tobytes())
    assert pair.engine.weights_hash() == digest.hexdigest()


async def test_no_prefix_of_older_weights_serves_newer_ones(pair: Pair) -> None:
    prompt = [5 + i % 100 for i in range(150)]  # several pages of the cache
    sampling = SamplingParams(max_tokens=5, temperature=1.0, seed=3)
    await pair.client.generate(prompt, sampling, "old")
    canary = pair.update(0.02)
    await _publish(pair, pair.tensors(), canary)
    new = await pair.client.generate(prompt, sampling, "new")
    expected = picked(torch.log_softmax(forward_logits(pair.trainer, prompt, new.ids), -1), new.ids)
    assert (expected - torch.tensor(new.logprobs)).abs().max() < 1e-5


async def test_a_cancelled_publish_leaves_nothing_serving(pair: Pair) -> None:
    class SlowLoad(Receiver):
        def load(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> LoadReport:
            loading.set()
            time.sleep(0.3)
            return self.inner.load(version, tensors)

    loading = threading.Event()
    task = asyncio.create_task(_publish(pair, pair.tensors(), pair.update(0.02), SlowLoad(pair)))
    await asyncio.to_thread(loading.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "not proved" in str(pair.engine.health())


async def test_every_engine_gets_and_proves_the_weights(pair: Pair) -> None:
    canary, sync = pair.update(0.02), MemorySync()
    sync.connect(pair.trainer, [pair.engine, Ignores(pair)])
    report = await sync.publish(1, iter(pair.tensors().items()), canary, pair.client)  # both show the first's weights
    assert report.bytes == 2 * sum(tensor.numel() * 4 for tensor in pair.tensors().values())
    canary = pair.update(0.02)
    sync.connect(pair.trainer, [Ignores(pair), pair.engine])
    with pytest.raises(PublishError, match="other bytes"):
        await sync.publish(2, iter(pair.tensors().items()), canary, pair.client)


def test_a_sync_without_engines_is_an_error(pair: Pair) -> None:
    with pytest.raises(PublishError, match="no engine"):
        MemorySync().connect(pair.trainer, [])


def test_sync_does_not_import_the_engine() -> None:
    import subprocess
    import sys

    code = "import sys, agentrl.sync.memory; sys.exit(any(m.startswith('agentrl.engine') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
