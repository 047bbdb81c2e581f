"""The publish flow to engines in other processes, against receivers in this one; tests/vllm has the real ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, EngineError, PublishError
from agentrl.sync.base import Canary
from agentrl.sync.choose import choose_transport, make_transport
from agentrl.sync.file import FileTransport
from agentrl.sync.gloo import GlooTransport
from agentrl.sync.remote import RemoteSync, Sent, Transport
from agentrl.testing.receiver import ModelReceiver
from agentrl.transfer import Manifest, read_file, read_handle, write_file, write_handle
from tests.engine.models import forward_logits, make_model, picked
from tests.sync.remote_faults import FAULTS, GATE, NORM, Gate, Twisted

PROMPT, FORCED = [5, 6, 7, 8], [9, 10, 11, 12, 13, 14]
UPDATE = ["pause keep", "begin_update", "receive", "end_update", "resume", "score"]
NAMES = ["file", "gloo"]


class Fleet:
    """A trainer and two engines that serve copies of its model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "weights"
        self.trainer = make_model(folder, tied=False)
        self.engines = [ModelReceiver(name, make_model(folder, tied=False)) for name in ("a", "b")]
        self.gate = Gate()
        self.transports: list[Transport] = []

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.trainer.state_dict())

    def logprobs(self) -> list[float]:
        return picked(torch.log_softmax(forward_logits(self.trainer, PROMPT, FORCED), -1), FORCED).tolist()

    @torch.no_grad()
    def update(self, scale: float = 0.02) -> Canary:
        previous = self.logprobs()
        for parameter in self.trainer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=scale)
        return Canary(prompt_ids=PROMPT, forced_ids=FORCED, expected=self.logprobs(), previous=previous, noise=1e-5)

    def sync(self, transport: Transport, *engines: Any, **options: Any) -> RemoteSync:
        sync = RemoteSync(transport, **options)
        sync.connect(self.trainer, engines or self.engines)
        self.transports.append(transport)
        return sync

    async def publish(self, sync: RemoteSync, version: int = 1, canary: Canary | None = None) -> Any:
        return await sync.publish(version, iter(self.tensors().items()), canary or self.update(), self.gate)


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    for transport in fleet.transports:
        transport.close()
    for engine in fleet.engines:
        await engine.stop()


@pytest.mark.parametrize("name", NAMES)
async def test_every_engine_gets_and_proves_the_weights(name: Any, fleet: Fleet) -> None:
    sync = fleet.sync(make_transport(name, fleet.folder))
    for version in (1, 2):
        report = await fleet.publish(sync, version)
        assert report.proof == "canary" and report.canary_delta < 1e-5
        assert report.bytes == 2 * sum(tensor.nbytes for tensor in fleet.tensors().values())
    assert fleet.gate.log == ["held", "delivered"] * 2
    for engine in fleet.engines:
        assert engine.calls == ["meet", *UPDATE, *UPDATE] and engine.version == 2


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
async def test_what_becomes_of_replies_in_flight_is_asked_of_every_engine(mode: Any, fleet: Fleet) -> None:
    await fleet.publish(fleet.sync(FileTransport(fleet.folder), pause_mode=mode))
    assert all(f"pause {mode}" in engine.calls for engine in fleet.engines)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_bad_delivery_is_repeated_while_all_are_paused(name: Any, fault: Any, fleet: Fleet) -> None:
    report = await fleet.publish(fleet.sync(Twisted(name, fleet.folder, fault, 1)))
    assert report.proof == "canary"
    for engine in fleet.engines:
        calls = [call for call in engine.calls if call != "meet"]
        assert calls == ["pause keep", "begin_update", "receive", *UPDATE[1:]]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
async def test_a_delivery_that_stays_bad_ends_all_engines_and_says_why(name: Any, fault: Any, fleet: Fleet) -> None:
    with pytest.raises(PublishError, match=f"(?s)version 1.*all engines were ended.*({FAULTS[fault]})"):
        await fleet.publish(fleet.sync(Twisted(name, fleet.folder, fault, 2)))
    assert fleet.gate.log == ["held", "failed"]
    for engine in fleet.engines:
        assert engine.is_stopped and "resume" not in engine.calls
    assert not list(fleet.folder.glob("*"))


async def test_a_doubled_name_is_refused_before_anything_is_paused(fleet: Fleet) -> None:
    canary = fleet.update()
    doubled = [*fleet.tensors().items(), (NORM, fleet.tensors()[NORM])]
    with pytest.raises(PublishError, match=f"sent more than once: {NORM}"):
        await fleet.sync(GlooTransport()).publish(1, iter(doubled), canary, fleet.gate)
    assert fleet.engines[0].calls == [] and fleet.gate.log == []
    manifest = Manifest.of(fleet.tensors(), {})
    manifest.names.append(NORM)
    await fleet.engines[0].begin_update()
    with pytest.raises(EngineError, match=f"sent more than once: {NORM}"):
        await fleet.engines[0].receive(manifest, {})


async def test_i03_names_that_do_not_match_are_listed_for_both_sides(fleet: Fleet) -> None:
    """Case I03: names of an adapter, as a trainer with LoRA would send them."""
    sent = {f"base_model.model.{n}" if n == GATE else n: t for n, t in fleet.tensors().items() if n != NORM}
    with pytest.raises(PublishError, match=f"missing: {GATE}, {NORM}; unexpected: base_model.model.{GATE}"):
        await fleet.sync(FileTransport(fleet.folder)).publish(1, iter(sent.items()), fleet.update(), fleet.gate)


class Ignores(ModelReceiver):
    """Case I08: answers that all is well, and keeps its weights."""

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        await super().receive(manifest, options)
        sums = await asyncio.to_thread(lambda: Sent.of(self.trainer.state_dict().items(), on_cpu=True).checksums())
        self._model.load_state_dict(self.kept)
        return sums

    trainer: Any
    kept: dict[str, torch.Tensor]


class KeepsVersion(ModelReceiver):
    """Case I08: takes the weights, and says nothing of it."""

    async def end_update(self, version: int) -> None:
        pass


async def test_i08_an_engine_that_ignores_updates_is_found_by_the_canary(fleet: Fleet) -> None:
    engine = Ignores("deaf", fleet.engines[1]._model)
    engine.trainer, engine.kept = fleet.trainer, {n: t.clone() for n, t in fleet.tensors().items()}
    with pytest.raises(PublishError, match="engine 'deaf' did not take version 1: the canary's logprobs differ"):
        await fleet.publish(fleet.sync(GlooTransport(), fleet.engines[0], engine))
    assert fleet.engines[0].is_stopped and engine.is_stopped and fleet.gate.log == ["held", "failed"]


async def test_i08_an_engine_that_ignores_the_version_is_found_by_its_stamp(fleet: Fleet) -> None:
    engine = KeepsVersion("deaf", fleet.engines[1]._model)
    with pytest.raises(PublishError, match=r"engine 'deaf'.*stamped with version \[0\]"):
        await fleet.publish(fleet.sync(GlooTransport(), fleet.engines[0], engine))
    assert fleet.engines[0].is_stopped


class Dies(ModelReceiver):
    """Is gone in the middle of a delivery, and answers nothing after it."""

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        await self.stop()
        raise EngineError(f"engine {self.name!r}: it ended with exit code -9")


class Stalls(ModelReceiver):
    """Lives, and takes nothing."""

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        await asyncio.sleep(4)
        raise EngineError(f"engine {self.name!r}: it stalled")


@pytest.mark.parametrize(("kind", "why"), [(Dies, "was ended"), (Stalls, "stalled")])
async def test_an_engine_that_dies_or_stalls_in_a_delivery_ends_all_in_bounded_time(
    kind: Any, why: str, fleet: Fleet
) -> None:
    engine = kind("dead", fleet.engines[1]._model)
    started = time.monotonic()
    with pytest.raises(PublishError, match=why):
        await fleet.publish(fleet.sync(GlooTransport(timeout_s=2), fleet.engines[0], engine))
    await engine.stop()
    assert time.monotonic() - started < 20 and fleet.engines[0].is_stopped and fleet.gate.log == ["held", "failed"]


class Absent(ModelReceiver):
    """Never comes to the meeting."""

    async def meet(self, transport: str, options: dict[str, Any]) -> None:
        pass


async def test_an_engine_that_does_not_meet_changes_nothing(fleet: Fleet) -> None:
    engine = Absent("absent", fleet.engines[1]._model)
    with pytest.raises(PublishError, match="could not be sent, the engines hold the one before"):
        await fleet.publish(fleet.sync(GlooTransport(timeout_s=1), fleet.engines[0], engine))
    assert not fleet.engines[0].is_stopped and fleet.gate.log == []


async def test_a_sync_without_engines_is_an_error(fleet: Fleet) -> None:
    sync = RemoteSync(GlooTransport())
    with pytest.raises(PublishError, match="no engine to send weights to"):
        sync.connect(fleet.trainer, [])
    with pytest.raises(PublishError, match="not connected"):
        await fleet.publish(sync)


async def test_tied_names_travel_once(fleet: Fleet) -> None:
    embed, other = torch.ones(3, 2), torch.zeros(2)
    sent = Sent.of([("embed", embed), ("head", embed), ("norm", other)], on_cpu=True)
    assert sent.manifest == Manifest(
        names=["embed", "norm"], dtype_names=["float32"] * 2, shapes=[[3, 2], [2]], tied={"head": "embed"}
    )
    assert sent.num_bytes == 32 and sent.checksums()["head"] == sent.checksums()["embed"]
    assert sent.tensors["embed"].data_ptr() == embed.data_ptr()  # nothing is copied


def test_the_file_is_what_safetensors_reads(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "c": torch.zeros(0, 2)}
    write_file(tmp_path / "weights.safetensors", tensors)
    read = load_file(tmp_path / "weights.safetensors")
    manifest = Manifest.of(tensors, {})
    ours = dict(zip(manifest.names, read_file(tmp_path / "weights.safetensors", manifest), strict=True))
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor) and torch.equal(ours[name], tensor) and ours[name].dtype == tensor.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


async def test_no_file_of_weights_is_left(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    sync = fleet.sync(FileTransport(fleet.folder))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("agentrl.transfer.os.fsync", full)
        await fleet.publish(sync)
    assert list(fleet.folder.iterdir()) == [] and not fleet.engines[0].is_stopped
    (fleet.folder / "weights.safetensors").write_bytes(b"of a run that was killed")
    fleet.sync(FileTransport(fleet.folder))
    assert list(fleet.folder.iterdir()) == []


def test_a_handle_of_gpu_memory_survives_json() -> None:
    storage = torch.zeros(1)._typed_storage()
    handle = (
        torch.Tensor, torch.Size([2, 3]), (3, 1), 0, type(storage), torch.bfloat16, 0, b"\x00handle\xff", 4096, 512,
        False, b"counter", 8, b"event", True,
    )  # fmt: skip
    assert read_handle(json.loads(json.dumps(write_handle(handle)))) == handle
    for strange in ("os.system", {"kind": "os.system"}, 1.5):
        with pytest.raises(ValueError, match="no part of a handle"):
            read_handle([strange])


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"env": {"name": "calculator"}, **sections})


@pytest.mark.parametrize(
    ("devices", "trainer", "chosen"),
    [
        ([], ["cpu"], "gloo"),
        ([0], ["cuda:0"], "ipc"),
        ([1], ["cuda:0"], "nccl"),
        ([2, 3], ["cuda:0", "cuda:1"], "nccl"),
        ([0, 1], ["cuda:0", "cuda:1"], "gloo"),
        ([0], ["cpu"], "gloo"),
    ],
)
def test_the_transport_follows_from_the_devices(devices: list[int], trainer: list[str], chosen: str) -> None:
    assert choose_transport(config(engine={"name": "vllm", "devices": devices}), trainer) == chosen


@pytest.mark.parametrize(
    ("asked", "devices", "trainer", "says"),
    [
        ("nccl", [], ["cpu"], "must be on different GPUs, here they are on cpu and the CPU"),
        ("nccl", [0], ["cuda:0"], "must be on different GPUs, here they are on cuda:0 and cuda:0"),
        ("ipc", [], ["cpu"], "must share one GPU, here they are on cpu and the CPU"),
        ("ipc", [1], ["cuda:0"], "must share one GPU, here they are on cuda:0 and cuda:1"),
        ("ipc", [0, 1], ["cuda:0", "cuda:1"], "must share one GPU"),
    ],
)
def test_a_transport_that_cannot_work_is_an_error_at_start(
    asked: str, devices: list[int], trainer: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"sync.transport={asked}: trainer and engine {says}"):
        choose_transport(config(engine={"name": "vllm", "devices": devices}, sync={"transport": asked}), trainer)


def test_an_engine_in_this_process_leaves_no_choice() -> None:
    assert choose_transport(config(), ["cpu"]) == "memory"
    for sync in ({"transport": "file"}, {"in_flight": "wait"}):
        with pytest.raises(ValueError, match="takes weights by memory"):
            config(sync=sync)
