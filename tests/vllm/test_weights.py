"""Weights to a real vLLM server: right in the end, or an error that names what is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.errors import EngineError, PublishError
from agentrl.rollout.http_client import HttpClient
from agentrl.run import sent_tensors
from agentrl.sync.base import RemoteReceiver
from agentrl.sync.choose import TransportName, make_transport
from agentrl.sync.gloo import GlooTransport
from agentrl.sync.ipc import IpcTransport
from agentrl.sync.nccl import NcclTransport
from agentrl.sync.remote import RemoteSync, Sent, Transport
from agentrl.testing.receiver import ModelReceiver
from agentrl.train.policy import Policy
from agentrl.transfer import Manifest
from tests.sync.remote_faults import Gate, Twisted, changed, partial, renamed, reshaped, torn
from tests.vllm.conftest import FORCED, PROMPT, Pair
from tests.vllm.sampling import (
    SHARED,
    copied,
    max_difference,
    put,
    sampled,
    sampled_in_flight,
)

BOTH = pytest.mark.parametrize("transport_name", ["gloo", "file"])
EMBED, GATE = "model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight"


class Spared(VllmEngine):
    """The session's engine, which isn't ended, for others need it."""

    is_stopped: bool

    @classmethod
    def of(cls, engine: VllmEngine) -> Any:
        spared = object.__new__(cls)
        spared.__dict__ = engine.__dict__  # what one knows of the server, the other knows
        spared.is_stopped = False
        return spared

    async def stop(self) -> None:
        self.is_stopped = True


def sync_of(pair: Pair, transport: Transport, *engines: RemoteReceiver, **options: Any) -> RemoteSync:
    sync = RemoteSync(transport, **options)
    sync.connect(pair.policy.model, engines)
    return sync


async def publish(pair: Pair, sync: RemoteSync | None = None, scale: float = 0.02) -> Any:
    """Version 1."""
    canary = pair.update(scale)
    return await (sync or pair.sync).publish(1, sent_tensors(pair.policy), canary, pair.client)


@BOTH
async def test_trainer_and_engine_agree_before_and_after_publishes(pair: Pair) -> None:
    num = 0
    for version in range(3):
        if version:
            report = await pair.sync.publish(
                version, sent_tensors(pair.policy), pair.update(0.01, version), pair.client
            )
            assert report.proof == "canary" and report.canary_delta < 1e-4
        samples = await sampled(pair, 16, 48)
        assert max_difference(pair, samples) < 1e-4
        assert {span.version for _, generation in samples for span in generation.spans} == {version}
        num += sum(len(generation.ids) for _, generation in samples)
    assert num > 500


async def test_logprobs_are_of_the_distribution_that_is_sampled_from(pair: Pair) -> None:
    samples = await sampled(pair, 4, 16, temperature=0.5)
    assert max_difference(pair, samples, temperature=0.5) < 1e-4
    assert max_difference(pair, samples) > 1e-2


@BOTH
async def test_replies_in_flight_that_are_kept_show_both_versions_and_both_are_exact(pair: Pair) -> None:
    before, canary = copied(pair), pair.update(0.02)
    running = await sampled_in_flight(pair)
    await pair.sync.publish(1, sent_tensors(pair.policy), canary, pair.client)
    samples = await running
    spans = [generation.spans for _, generation in samples if len(generation.spans) == 2]
    assert spans and all([span.version for span in two] == [0, 1] for two in spans)
    assert max_difference(pair, samples, version=1) < 1e-4
    put(pair, before)
    assert max_difference(pair, samples, version=0) < 1e-4


@BOTH
async def test_replies_in_flight_that_are_waited_for_are_of_the_old_version(
    pair: Pair, transport_name: TransportName, tmp_path: Path
) -> None:
    running = await sampled_in_flight(pair)
    before = copied(pair)
    await publish(pair, sync_of(pair, make_transport(transport_name, tmp_path / "w"), pair.engine, pause_mode="wait"))
    samples = await running
    assert all([span.version for span in generation.spans] == [0] for _, generation in samples)
    assert {generation.finish_reason for _, generation in samples} <= {"length", "stop"}
    put(pair, before)
    assert max_difference(pair, samples) < 1e-4


@BOTH
async def test_replies_in_flight_that_are_aborted_are_partial_and_of_the_old_version(
    pair: Pair, transport_name: TransportName, tmp_path: Path
) -> None:
    before, canary = copied(pair), pair.update(0.02)
    sync = sync_of(pair, make_transport(transport_name, tmp_path / "w"), pair.engine, pause_mode="abort")
    running = await sampled_in_flight(pair)
    await sync.publish(1, sent_tensors(pair.policy), canary, pair.client)
    aborted = [(prompt, reply) for prompt, reply in await running if reply.finish_reason == "abort"]
    assert aborted and all(len(reply.ids) < 400 for _, reply in aborted)
    assert {span.version for _, reply in aborted for span in reply.spans} == {0}
    put(pair, before)
    assert max_difference(pair, aborted) < 1e-4


FAULTS = {
    partial: "missing: model.norm.weight",
    renamed: f"missing: {GATE}; unexpected: module.{GATE}",
    changed: "other bytes than were sent arrived for model.norm.weight",
    reshaped: "of another shape: model.norm.weight",
    torn: "could not be sent by gloo|is torn or gone|Connection closed|Read error",
}


@pytest.mark.parametrize("fault", FAULTS)
@BOTH
async def test_a_bad_delivery_is_repeated_while_paused_or_named(
    pair: Pair, transport_name: TransportName, fault: Any, tmp_path: Path
) -> None:
    """First once, then in both tries; what a server has been through doesn't show in what it serves next."""
    engine = Spared.of(pair.engine)
    report = await publish(pair, sync_of(pair, Twisted(transport_name, tmp_path / "w", fault, 1), engine))
    assert report.proof == "canary" and report.canary_delta < 1e-4 and not engine.is_stopped
    with pytest.raises(PublishError, match=f"(?s)version 1.*all engines were ended.*({FAULTS[fault]})"):
        await publish(pair, sync_of(pair, Twisted(transport_name, tmp_path / "w", fault, 2), engine))
    assert engine.is_stopped
    again = await publish(pair, sync_of(pair, make_transport(transport_name, tmp_path / "w"), engine))
    assert again.canary_delta < 1e-4
    assert max_difference(pair, await sampled(pair, 4, 32)) < 1e-4


async def test_replies_that_were_held_fail_where_the_publish_fails(pair: Pair, tmp_path: Path) -> None:
    canary = pair.update(0.02)
    sync = sync_of(pair, Twisted("gloo", tmp_path, changed, 2), Spared.of(pair.engine), pause_mode="abort")
    running = await sampled_in_flight(pair)
    with pytest.raises(PublishError):
        await sync.publish(1, sent_tensors(pair.policy), canary, pair.client)
    with pytest.raises(EngineError, match=r"not proved.*model\.norm\.weight"):
        await running


class Lying(Spared):
    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        return await super().receive(manifest, options) | {"model.norm.weight": "0"}


async def test_one_of_two_engines_that_lies_ends_both(pair: Pair, folder: Path) -> None:
    lying = Lying.of(pair.engine)
    other = ModelReceiver("other", AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    gate = Gate()
    sync = sync_of(pair, GlooTransport(), other, lying)
    with pytest.raises(PublishError, match=r"engine 'vllm'.*model\.norm\.weight"):
        await sync.publish(1, sent_tensors(pair.policy), pair.update(0.02), gate)
    assert lying.is_stopped and other.is_stopped and gate.log == ["held", "failed"]


async def test_a_model_in_this_process_and_a_server_take_weights_together(pair: Pair, folder: Path) -> None:
    other = ModelReceiver("other", AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    report = await publish(pair, sync_of(pair, GlooTransport(), other, pair.engine))
    assert report.proof == "canary" and report.canary_delta < 1e-4
    ours, theirs = await other.score(PROMPT, FORCED), await pair.engine.score(PROMPT, FORCED)
    assert ours[0] == pytest.approx(theirs[0], abs=1e-4) and ours[1] == theirs[1] == [1] * len(FORCED)


@pytest.mark.parametrize("kind", ["server", "model"])
async def test_the_receiver_for_tests_says_what_the_real_one_says(pair: Pair, folder: Path, kind: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    receiver: RemoteReceiver = Spared.of(pair.engine) if kind == "server" else ModelReceiver("vllm", model)
    sent = Sent.of(sent_tensors(pair.policy), on_cpu=True)
    transport = make_transport("file", folder / "weights")
    transport.connect([receiver])
    await transport.prepare(sent)
    options = {"path": str(folder / "weights" / "weights.safetensors")}
    with pytest.raises(EngineError, match="vllm"):
        await receiver.receive(sent.manifest, options)  # nothing has begun
    await receiver.pause("keep", PROMPT + FORCED)
    for wrong in (partial(sent), renamed(sent), reshaped(sent)):
        await receiver.begin_update()
        with pytest.raises(EngineError, match="what is sent doesn't hold the tensors that it should"):
            await receiver.receive(wrong.manifest, options)
    await receiver.begin_update()
    assert await receiver.receive(sent.manifest, options) == sent.checksums()
    await receiver.begin_update()  # again, before it was put in force
    assert await receiver.receive(sent.manifest, options) == sent.checksums()
    await receiver.end_update(7)
    await receiver.resume()
    logprobs, versions = await receiver.score(PROMPT, FORCED)
    assert logprobs == pytest.approx(pair.logprobs(), abs=1e-4) and versions == [7] * len(FORCED)
    assert receiver.num_workers == 1
    transport.clean()


async def test_i01_the_same_prompt_gives_what_the_new_weights_say(pair: Pair, folder: Path) -> None:
    """Case I01: nothing of the prefix that is in the cache is of the old weights."""
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for version in (0, 1):
        if version:
            await publish(pair)
            reference.load_state_dict(copied(pair), strict=False)
        ((prompt, reply),) = await sampled(pair, 1, 24, temperature=0.0)
        assert prompt[: len(SHARED)] == SHARED
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + reply.ids])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == reply.ids


class KeepsCache(Spared):
    """Its pause answers that all is well, and clears nothing."""

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await super()._post(path.replace("clear_cache=true", "clear_cache=false"), body)


async def test_i01_an_engine_that_keeps_its_cache_is_found_however_small_the_update(pair: Pair) -> None:
    """Case I01: the canary's logprobs are computed anew, so they would pass."""
    engine = KeepsCache.of(pair.engine)
    with pytest.raises(PublishError, match="kept its cache when it was paused"):
        await publish(pair, sync_of(pair, GlooTransport(), engine), scale=1e-7)
    assert engine.is_stopped


@pytest.mark.parametrize("num_ids", [12, 60], ids=["shorter", "longer"])
async def test_i01_canaries_shorter_and_longer_than_a_block_find_a_cache_that_was_kept(
    pair: Pair, num_ids: int
) -> None:
    """Case I01: what is in the cache is the canary's own beginning, or a prompt beside it."""
    ids = list(range(20, 20 + num_ids))
    for kind in (KeepsCache, Spared):
        engine = kind.of(pair.engine)
        await engine.pause("keep", ids)
        await engine.resume()
        scoring = engine.score(ids[:-4], ids[-4:])
        if kind is KeepsCache:
            with pytest.raises(EngineError, match="kept its cache when it was paused"):
                await scoring
        else:
            logprobs, _ = await scoring
            assert logprobs == pytest.approx(pair.policy.logprobs(ids, range(num_ids - 4, num_ids)), abs=1e-4)


class Deaf(Spared):
    """Answers that all is well, and loads nothing."""

    policy: Policy

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        return Sent.of(sent_tensors(self.policy), on_cpu=True).checksums()


async def test_i08_a_server_that_ignores_updates_is_found_by_the_canary(pair: Pair, tmp_path: Path) -> None:
    engine = Deaf.of(pair.engine)
    engine.policy = pair.policy
    with pytest.raises(PublishError, match="engine 'vllm' did not take version 1: the canary's logprobs differ"):
        await publish(pair, sync_of(pair, make_transport("file", tmp_path), engine))
    assert engine.is_stopped


async def test_i04_a_tied_head_that_stays_as_it_was_is_found_by_the_canary(pair: Pair) -> None:
    """What vLLM's CPU build does by itself, unless the head is sent too: all arrives, and the packed head is stale."""
    engine = Spared.of(pair.engine)
    sync = sync_of(pair, GlooTransport(), engine)
    await engine._post("/collective_rpc", {"method": "keep_head"})
    try:
        with pytest.raises(PublishError, match="the canary's logprobs differ"):
            await sync.publish(1, pair.policy.tensors(), pair.update(0.02), pair.client)
    finally:
        await engine._post("/collective_rpc", {"method": "renew_head"})
    report = await sync.publish(1, pair.policy.tensors(), pair.update(0.02), pair.client)
    assert report.canary_delta < 1e-4


async def test_i04_a_tied_head_that_the_file_stores_too_is_renewed(folder: Path, tmp_path: Path) -> None:
    """vLLM unties the head there, so it must be sent under its own name as well. The server is killed at the end."""
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights[EMBED].clone()
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    options = VllmOptions(model=tmp_path / "model", name="vllm", log=tmp_path / "log")
    with Policy.load(tmp_path / "model", device="cpu", threads=1) as policy:
        async with VllmEngine(options) as engine, HttpClient(engine.url, key=engine.key) as client:
            pair = Pair(policy, engine, client, RemoteSync(GlooTransport()))
            pair.sync.connect(policy.model, [engine])
            assert policy.tied_names
            assert (await publish(pair, scale=0.01)).proof == "canary"
            await killed_in_a_delivery(pair)


class Deadly(dict[str, torch.Tensor]):
    """Tensors at the fourth of which the server is killed, when they are sent."""

    num_read = 0

    def values(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        for number, tensor in enumerate(super().values()):
            if number == 3 and self.num_read == 2:
                kill_servers()
            yield tensor
        self.num_read += 1


def kill_servers() -> None:
    """All of this process but the session's would do; the youngest is the test's own."""
    servers = [p for p in psutil.Process().children() if any("agentrl.engine.vllm.main" in w for w in p.cmdline())]
    os.killpg(max(servers, key=lambda process: process.create_time()).pid, signal.SIGKILL)


async def killed_in_a_delivery(pair: Pair) -> None:
    running = await sampled_in_flight(pair)
    twisted = Twisted("gloo", Path(), lambda sent: Sent(tensors=Deadly(sent.tensors), tied=sent.tied), 1)
    started = time.monotonic()
    with pytest.raises(PublishError, match=r"(?s)could not be put in force.*it ended with exit code -9"):
        await publish(pair, sync_of(pair, twisted, pair.engine))
    with pytest.raises(EngineError):
        await running
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("kind", [NcclTransport, IpcTransport])
async def test_without_a_gpu_vllms_own_ways_are_an_error_that_changes_nothing(pair: Pair, kind: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    engine = Spared.of(pair.engine)
    sync = sync_of(pair, kind(timeout_s=60), engine)
    before = await engine.score(PROMPT, FORCED)
    with pytest.raises(PublishError, match=f"the weights could not be sent by {kind.name}"):
        await publish(pair, sync)
    assert not engine.is_stopped and await engine.score(PROMPT, FORCED) == before


INFOS = """
import json, sys, torch, warnings
warnings.simplefilter("ignore")
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from agentrl.engine.vllm.receive import _fields
from agentrl.sync.helper import FlowClient, Source
from agentrl.sync.ipc import IpcClient
from agentrl.sync.remote import Sent
from agentrl.transfer import read_handle
import asyncio

loop = asyncio.new_event_loop()
sent = Sent.of([("a", torch.zeros(2, 3)), ("b", torch.zeros(4))], on_cpu=False)
NCCLWeightTransferUpdateInfo(**_fields(sent.manifest))
assert [(m.name, m.dtype, m.shape) for m in Source(sent).metadata()] == [
    ("a", torch.float32, (2, 3)), ("b", torch.float32, (4,))
]
init = NCCLWeightTransferInitInfo(master_address="127.0.0.1", master_port=1, rank_offset=1, world_size=4)
options = FlowClient("nccl", [], loop).options_of_meeting(worker_init_payload(init), 3)
assert NCCLWeightTransferInitInfo(**json.loads(json.dumps(options))).rank_offset == 3
handle = (torch.Tensor, torch.Size([4]), (1,), 0, torch.storage.TypedStorage, torch.float32, 0, b"h", 16, 0, False,
          b"c", 0, b"e", True)
given = {"ipc_handles": [{"GPU-1": handle}] * 2}
written = json.loads(json.dumps(IpcClient("ipc", [], loop).options_of_update(given)))
read = [{gpu: read_handle(one) for gpu, one in of_one.items()} for of_one in written["handles"]]
assert IPCWeightTransferUpdateInfo(**_fields(sent.manifest), ipc_handles=read).ipc_handles == given["ipc_handles"]
print("well")
"""


def test_what_is_said_to_vllms_own_engines_is_what_they_read(installed: None) -> None:
    done = subprocess.run([sys.executable, "-c", INFOS], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("well\n"), done.stderr[-2000:]
