"""What the database says of an engine's fault: which server, trajectory and turn, and why."""

from __future__ import annotations

import pytest

from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.testing.endpoint import Fault, Reply, ScriptedEndpoint, SeenRequest
from agentrl.testing.memory import MemoryRecorder
from agentrl.types import StopReason, Trajectory
from tests.rollout.loops import call, make_loop, play

FAST = RetryPolicy(max_tries=3, wait_s=0.002)


def say(renderer: Renderer, seen: SeenRequest) -> Reply:
    """A call at every turn."""
    ids = renderer.tokenizer.encode(call("repeat", '{"text": "red"}'), add_special_tokens=False)
    return Reply(ids=[*ids, renderer.stop_ids[0]])


async def failed_at_turn_1(renderer: Renderer, fault: Fault | None) -> tuple[Trajectory, ScriptedEndpoint]:
    """A rollout whose second turn fails so, whatever is tried; None: the server is killed."""
    num_asked = 0

    def plan() -> Fault | None:
        nonlocal num_asked
        num_asked += 1
        return fault if num_asked > 1 else None

    class Recorder(MemoryRecorder):
        async def update_turn(self, trajectory: Trajectory, turn: object) -> None:
            if fault is None:
                await endpoint.go_down()

    endpoint, recorder = ScriptedEndpoint(lambda seen: say(renderer, seen), fault=plan), Recorder()
    async with endpoint, HttpClient(endpoint.url, retry=FAST, request_timeout_s=0.2) as client:
        await play(make_loop(renderer, client, recorder))
    (trajectory,) = recorder.finished
    return trajectory, endpoint


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("no_ids", "holds no token_ids although return_token_ids was set"),
        ("no_logprobs", "0 logprobs came for"),
        ("nan", "logprob nan is not a finite number"),
        ("null", "logprob None is not a finite number"),
        ("500", "HTTP 500: broken on purpose"),
        ("timeout", "no answer within 0.2 s (engine.request_timeout_s)"),
        (None, "the connection failed"),
    ],
)
async def test_c03_a13_a_fault_is_stored_with_server_trajectory_and_turn(
    renderer: Renderer, fault: Fault | None, says: str
) -> None:
    trajectory, endpoint = await failed_at_turn_1(renderer, fault)
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR and len(trajectory.turns) == 1
    for part in (endpoint.url, f"{trajectory.id}-1", says):
        assert part in str(trajectory.error)


async def test_e02_an_overflow_is_stored_with_server_trajectory_and_turn(renderer: Renderer) -> None:
    trajectory, endpoint = await failed_at_turn_1(renderer, "overflow")
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    for part in (endpoint.url, f"{trajectory.id}-1", "maximum context length"):
        assert part in str(trajectory.error)


async def test_e02_a_prompt_that_is_known_to_be_too_long_is_told_by_trajectory_and_turn(renderer: Renderer) -> None:
    async with ScriptedEndpoint(lambda seen: say(renderer, seen)) as endpoint, HttpClient(endpoint.url) as client:
        sample = await play(make_loop(renderer, client, window=16))
    assert sample.trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW and endpoint.seen == []
    assert f"trajectory {sample.trajectory.id}, turn 0: nothing can be sampled" in str(sample.trajectory.error)
    assert "in a window of 16" in str(sample.trajectory.error)
