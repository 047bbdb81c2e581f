"""The pool of boxes: bounded, started ahead, each lent once, and nothing of it left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl import lent_box
from agentrl.config_sandbox import SandboxConfig
from agentrl.errors import ConfigError, PluginError, SandboxError, SandboxFault
from agentrl.lent_box import LentBox
from agentrl.rollout import boxes as boxes_module
from agentrl.rollout.admission import GIB, machine_memory_bytes, memory_for_boxes
from agentrl.rollout.boxes import Boxes
from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.bubblewrap import BubblewrapBackend
from agentrl.testing.faulty_sandbox import FaultyBox, FaultySandboxes
from tests.rollout.faulty_boxes import open_boxes, register, sandbox_config, until

SPEC = SandboxSpec(memory_bytes=GIB)
OTHER = SandboxSpec(memory_bytes=GIB, workdir="/other")


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, monkeypatch)
    monkeypatch.setattr(boxes_module, "FIRST_WAIT_S", 0.01)


def behind(lent: LentBox) -> FaultyBox:
    assert isinstance(lent._box, FaultyBox)
    return lent._box


async def hold(boxes: Boxes, spec: SandboxSpec = SPEC, seconds: float = 0.01) -> FaultyBox:
    box = await boxes.take(spec, hold_s=60)
    await asyncio.sleep(seconds)
    await box.stop()
    return behind(box)


# ---- bounds ----


@pytest.mark.parametrize("warm", [0, 2])
async def test_boxes_are_bounded_and_none_is_lent_twice(warm: int) -> None:
    async with open_boxes(max_boxes=3, warm=warm, max_memory_gib=100) as (boxes, backend):
        used = await asyncio.gather(*(hold(boxes) for _ in range(20)))
        assert len(set(map(id, used))) == 20 and all(box.is_stopped for box in used)
        assert backend.max_living == 3


async def test_g08_the_sum_of_limits_is_bounded_by_the_machine() -> None:
    """G08: what boxes are promised together fits the memory; who needs more than there is in all is told so."""
    async with open_boxes(max_boxes=50, max_memory_gib=4) as (boxes, backend):
        await asyncio.gather(*(hold(boxes) for _ in range(12)))
        assert backend.max_living == 4
        with pytest.raises(SandboxError, match=r"limit of 5 GiB .* the 4 GiB .* sandbox.max_memory_gib") as caught:
            await boxes.take(SandboxSpec(memory_bytes=5 * GIB), hold_s=1)
        assert caught.value.kind is SandboxFault.HOST_FULL
    assert 0 < memory_for_boxes(None) < machine_memory_bytes()


async def test_g08_a_disk_in_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """G08: bubblewrap's boxes write to memory."""
    backend = BubblewrapBackend(BubblewrapBackend.Options(), run="test")
    assert backend.memory_bytes(SandboxSpec(memory_bytes=3, disk_bytes=4)) == 7
    monkeypatch.setattr(FaultySandboxes, "memory_bytes", BubblewrapBackend.memory_bytes)
    async with open_boxes(max_boxes=50, max_memory_gib=4) as (boxes, faulty):
        await asyncio.gather(*(hold(boxes, SandboxSpec(memory_bytes=GIB, disk_bytes=GIB)) for _ in range(6)))
        assert faulty.max_living == 2


async def test_a_large_box_is_not_passed_for_ever_by_small_ones() -> None:
    async with open_boxes(max_boxes=50, max_memory_gib=4) as (boxes, _):
        large = SandboxSpec(memory_bytes=4 * GIB)
        ended: list[str] = []

        async def one(name: str, spec: SandboxSpec) -> None:
            await hold(boxes, spec)
            ended.append(name)

        await asyncio.gather(one("first", SPEC), one("large", large), *(one("small", SPEC) for _ in range(8)))
        assert ended[:2] == ["first", "large"]


async def test_starts_are_paced() -> None:
    async with open_boxes(starts_per_second=50) as (boxes, _):
        started = time.monotonic()
        await asyncio.gather(*(hold(boxes) for _ in range(11)))
        assert time.monotonic() - started >= 10 / 50


async def test_a_rollout_that_is_cancelled_while_it_waits_takes_no_room() -> None:
    async with open_boxes({"start_s": 0.05}, max_boxes=2) as (boxes, _):
        tasks = [asyncio.create_task(hold(boxes)) for _ in range(8)]
        await asyncio.sleep(0.02)
        for task in tasks[:5]:
            task.cancel()
        assert len(await asyncio.gather(*tasks[5:])) == 3
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- started ahead ----


async def test_boxes_are_started_ahead_and_wait_for_the_next() -> None:
    async with open_boxes(warm=2) as (boxes, backend):
        await hold(boxes)
        await until(lambda: backend.num_living == 2, asyncio.sleep)
        ahead = backend.boxes[1]
        box = await boxes.take(SPEC, hold_s=1)
        assert behind(box) is ahead
        await box.stop()


async def test_a_box_that_died_while_it_waited_is_replaced() -> None:
    async with open_boxes(warm=1) as (boxes, backend):
        await hold(boxes)
        await until(lambda: backend.num_living == 1, asyncio.sleep)
        backend.boxes[1].is_dead = True
        box = await boxes.take(SPEC, hold_s=1)
        assert behind(box) is backend.boxes[2] and backend.boxes[1].is_stopped
        await box.stop()


async def test_a_waiting_box_makes_room_for_one_of_another_kind() -> None:
    async with open_boxes(warm=2, max_boxes=3) as (boxes, backend):
        first = await boxes.take(SPEC, hold_s=1)
        await until(lambda: backend.num_living == 3, asyncio.sleep)
        other = await asyncio.wait_for(boxes.take(OTHER, hold_s=1), 5)
        assert backend.max_living == 3 and behind(other).spec.workdir == "/other"
        await first.stop()
        await other.stop()


async def test_a_box_that_nobody_comes_for_is_ended() -> None:
    async with open_boxes(warm=2, idle_timeout_s=0.2) as (boxes, backend):
        await hold(boxes)
        await until(lambda: backend.num_living == 2, asyncio.sleep)
        await until(lambda: backend.num_living == 0 and boxes.room.num_boxes == 0, asyncio.sleep)


# ---- starts that fail ----


async def test_r3_a_start_that_fails_is_tried_again_within_its_budget() -> None:
    async with open_boxes({"failing_starts": 2}, max_start_tries=3) as (boxes, backend):
        await hold(boxes)
        assert backend.num_starts == 3
    async with open_boxes({"failing_starts": 3}, max_start_tries=3) as (boxes, backend):
        with pytest.raises(SandboxError, match="start 2 fails by plan"):
            await boxes.take(SPEC, hold_s=1)
        await hold(boxes)


async def test_a_start_that_hangs_ends_at_its_limit_while_others_start() -> None:
    plan = {"hanging_starts": 1}
    async with open_boxes(plan, start_timeout_s=0.3, max_start_tries=1) as (boxes, _):
        bad = asyncio.create_task(boxes.take(SPEC, hold_s=1))
        await asyncio.sleep(0.01)
        await asyncio.gather(*(hold(boxes) for _ in range(3)))
        assert not bad.done()
        with pytest.raises(SandboxError, match=r"not ready after 0.3 s \(sandbox.start_timeout_s\)") as caught:
            await bad
        assert caught.value.kind is SandboxFault.START


async def test_g11_an_image_that_is_missing_is_asked_for_once_and_told_once() -> None:
    told: list[tuple[str, Any]] = []

    def tell(kind: str, **values: Any) -> None:
        told.append((kind, values.get("image")))

    plan = {"missing_images": ["gone:1"]}
    async with open_boxes(plan, tell) as (boxes, backend):
        for _ in range(3):
            with pytest.raises(SandboxError, match="gone:1 isn't there: pull it") as caught:
                await boxes.take(SandboxSpec(image="gone:1"), hold_s=1)
            assert caught.value.kind is SandboxFault.IMAGE
        await hold(boxes, SandboxSpec(image="there:1"))
        assert backend.num_starts == 2 and told == [("sandbox", None), ("image_missing", "gone:1")]
        assert "pull it" in boxes.missing_images["gone:1"]


async def test_a_machine_that_lacks_something_is_told_before_anything_starts() -> None:
    plan = {"missing": ["no bwrap on the PATH: install bubblewrap", "no user namespaces"]}
    async with Boxes(sandbox_config(plan), run="test") as boxes:
        with pytest.raises(ConfigError, match=r"faulty can't start boxes.*install bubblewrap; no user namespaces"):
            await boxes.require([SPEC])
        with pytest.raises(SandboxError) as caught:
            await boxes.take(SPEC, hold_s=1)
        assert caught.value.kind is SandboxFault.UNAVAILABLE


# ---- the end ----


async def test_g04_a_box_that_does_not_stop_holds_nobody_and_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """G04: the end of an episode waits for a grace only; the box counts until it is really gone."""
    monkeypatch.setattr(lent_box, "STOP_S", 0.05)
    async with open_boxes({"stop_s": 0.6}, max_boxes=1) as (boxes, backend):
        box = await boxes.take(SPEC, hold_s=60)
        started = time.monotonic()
        await box.stop()
        assert time.monotonic() - started < 0.5 and boxes.room.num_boxes == 1
        await hold(boxes, seconds=0)
        assert backend.max_living == 1
        monkeypatch.setattr(lent_box, "STOP_S", 10.0)


async def test_g13_a_box_whose_holder_is_gone_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """G13: who takes one and never gives it back loses it after its time; who is in time keeps it."""
    monkeypatch.setattr(lent_box, "MAX_OVERRUN_S", 0.2)
    async with open_boxes(max_boxes=2) as (boxes, _):
        lost = await boxes.take(SPEC, hold_s=0.1)
        kept = await boxes.take(SPEC, hold_s=60)
        third = await asyncio.wait_for(boxes.take(SPEC, hold_s=1), 10)
        assert behind(lost).is_stopped and not behind(kept).is_stopped
        for box in (lost, kept, third):
            await box.stop()
            await box.stop()


async def test_f07_a_box_lives_as_long_as_it_is_lent() -> None:
    """F07: the lifetime of a spec is no hidden limit inside of a longer episode."""
    async with open_boxes() as (boxes, _):
        box = await boxes.take(SandboxSpec(lifetime_s=1.0), hold_s=50_000)
        assert behind(box).spec.lifetime_s > 50_000
        await box.stop()


# ---- the config ----


def test_auto_is_never_local() -> None:
    auto, image = SandboxConfig(), SandboxSpec(image="a:1")
    assert auto.backend_of(image) == "docker" and auto.backend_of(SandboxSpec()) == "bubblewrap"
    named = sandbox_config()
    assert named.backend_of(image) == "faulty" and named.backend_of(SandboxSpec(backend="docker")) == "docker"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"options": {"start_s": 1}}, "options belong to one backend"),
        ({"backend": "faulty", "options": {"strat_s": 1}}, "faulty has no option 'strat_s'; it has: inner, "),
        ({"backend": "faulty", "options": {"start_s": "soon"}}, "options.start_s: Input should be a valid number"),
    ],
)
def test_options_are_checked_by_their_backend(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SandboxConfig.model_validate(values)


def test_an_unknown_backend_is_named_with_near_ones() -> None:
    with pytest.raises(PluginError, match=r"unknown sandbox 'fautly'; known: .*faulty"):
        SandboxConfig(backend="fautly")


async def test_who_waits_for_an_image_takes_no_place() -> None:
    """A pull may take minutes; boxes whose image is here go past it."""
    async with open_boxes({"pull_s": 30.0}, max_boxes=1) as (boxes, _):
        pulling = asyncio.create_task(hold(boxes, SandboxSpec(image="slow:1")))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(hold(boxes), 20)
        assert not pulling.done() and boxes.room.num_boxes == 0
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
