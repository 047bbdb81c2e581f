"""Groups: siblings don't share a fate, and faults are retried within a budget."""

from __future__ import annotations

from agentrl.config import RolloutConfig
from agentrl.errors import EngineError
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.types import Group, Purpose, StopReason
from tests.rollout.loops import TextClient, make_loop


class Flaky(TextClient):
    """Fails the first `num_faults` calls."""

    def __init__(self, renderer: Renderer, num_faults: int) -> None:
        super().__init__(renderer, "red")
        self.num_faults = num_faults

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        self.num_faults -= 1
        if self.num_faults >= 0:
            raise EngineError("reset by peer")
        return await super().generate(ids, sampling, request_id)


def group(size: int) -> Group:
    task = Toy.tasks(ToyConfig(), "train")[0]
    return Group(id="g", run="run", task=task, purpose=Purpose.TRAIN, ordinal=0, size=size)


async def test_a_fault_is_retried_and_both_attempts_are_stored(renderer: Renderer) -> None:
    recorder, heard = MemoryRecorder(), []
    pool = RolloutPool(make_loop(renderer, Flaky(renderer, 1), recorder), RolloutConfig(max_attempts=2), run_seed=0)
    (played,) = await pool.run([group(4)], on_sample=heard.append)
    assert [sample.reward for sample in played.samples] == [1.0] * 4
    assert sorted(sample.trajectory.attempt for sample in heard) == [0, 0, 0, 0, 1]
    assert sorted(str(kept.stop_reason) for kept in recorder.finished) == ["completed"] * 4 + ["engine_error"]


async def test_past_the_budget_the_fault_is_the_samples_ending(renderer: Renderer) -> None:
    pool = RolloutPool(
        make_loop(renderer, Flaky(renderer, 9)), RolloutConfig(max_attempts=3, max_fault_share=1), run_seed=0
    )
    (played,) = await pool.run([group(3)])
    assert [sample.trajectory.stop_reason for sample in played.samples] == [StopReason.ENGINE_ERROR] * 3
    assert [sample.trajectory.attempt for sample in played.samples] == [2, 2, 2]
    assert [sample.reward for sample in played.samples] == [None] * 3


async def test_concurrency_is_bounded(renderer: Renderer) -> None:
    class Counting(TextClient):
        now = most = 0

        async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                import asyncio

                await asyncio.sleep(0)
                return await super().generate(ids, sampling, request_id)
            finally:
                self.now -= 1

    client = Counting(renderer, "red")
    await RolloutPool(make_loop(renderer, client), RolloutConfig(concurrency=3), run_seed=0).run([group(12)])
    assert client.most == 3
