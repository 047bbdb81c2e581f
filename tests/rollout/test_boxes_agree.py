"""The boxes that are lent, and those that fail by plan, do what a real box does: the suite for any backend says so."""

from __future__ import annotations

from agentrl.lent_box import LentBox
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.faulty_sandbox import FaultyOptions, FaultySandboxes
from agentrl.testing.sandbox import check, verify


class Lent(FaultySandboxes):
    """What an episode has in its hands, around a box whose plan has no faults."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        return LentBox(await super().start(spec), hold_s=600, on_end=lambda: None)


async def test_lent_boxes_and_fakes_are_as_real_ones() -> None:
    backend = Lent(FaultyOptions(), run="test")
    verify(await check(backend))
    await backend.close()
    assert backend.num_living == 0
