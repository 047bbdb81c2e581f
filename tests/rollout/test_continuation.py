"""A reply that the engine cuts is continued from its ids, as further calls of the same turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from agentrl.errors import EngineError, EngineFault
from agentrl.rollout.client import Generation, SamplingParams, VersionSpan
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy
from agentrl.rollout.samplers import EngineSampler
from agentrl.testing.endpoint import Reply, ScriptedEndpoint, SeenRequest
from agentrl.types import EngineCall, StopReason
from tests.rollout.loops import make_loop, play

PARAMS = SamplingParams(max_tokens=8, temperature=1.0, seed=5, stop_token_ids=(2,))
Said = tuple[list[int], Literal["stop", "length", "abort"], int]
"""Ids, finish reason and version of one call."""


class CutClient:
    """Plays calls one after the other; the last one is played again and again."""

    def __init__(self, *calls: Said) -> None:
        self.calls = calls
        self.seen: list[tuple[list[int], SamplingParams, str]] = []

    async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
        sampled, reason, version = self.calls[min(len(self.seen), len(self.calls) - 1)]
        self.seen.append((ids, sampling, request_id))
        return Generation(
            request_id=request_id,
            engine=f"engine-{len(self.seen)}",
            ids=sampled,
            logprobs=[-float(id) for id in sampled],
            spans=[VersionSpan(version=version, start=0, end=len(sampled))] if sampled else [],
            finish_reason=reason,
        )


async def sample(*calls: Said) -> tuple[Generation, CutClient]:
    client = CutClient(*calls)
    return await EngineSampler(client).sample([10, 11], [], PARAMS, "t-3"), client


async def test_a_cut_reply_goes_on_from_its_ids_with_what_is_left() -> None:
    reply, client = await sample(([5, 6, 7], "abort", 0), ([], "abort", 0), ([8], "abort", 1), ([9, 2], "stop", 1))
    assert [ids for ids, _, _ in client.seen] == [[10, 11], [10, 11, 5, 6, 7], [10, 11, 5, 6, 7], [10, 11, 5, 6, 7, 8]]
    assert [sampling.max_tokens for _, sampling, _ in client.seen] == [8, 5, 5, 4]
    assert [name for _, _, name in client.seen] == ["t-3", "t-3-call1", "t-3-call2", "t-3-call3"]
    assert len({sampling.seed for _, sampling, _ in client.seen}) == 4
    assert reply.ids == [5, 6, 7, 8, 9, 2] and reply.logprobs == [-5.0, -6.0, -7.0, -8.0, -9.0, -2.0]
    assert [(span.version, span.start, span.end) for span in reply.spans] == [(0, 0, 3), (1, 3, 4), (1, 4, 6)]
    assert reply.finish_reason == "stop" and reply.num_sampled == 6


@pytest.mark.parametrize(("ids", "reason"), [([5, 2], "stop"), ([5] * 8, "length")])
async def test_a_reply_that_was_cut_after_its_end_is_whole(ids: list[int], reason: str) -> None:
    reply, client = await sample((ids, "abort", 0))
    assert (reply.ids, reply.finish_reason, len(client.seen)) == (ids, reason, 1)


async def test_cuts_without_progress_end_as_a_fault() -> None:
    with pytest.raises(EngineError, match=r"cut request 't-3' 3 times in a row without a single id \(engine-4\)") as e:
        await sample(([5], "abort", 0), ([], "abort", 0))
    assert e.value.kind is EngineFault.ABORTED
    # Slow progress is progress.
    reply, client = await sample(([5], "abort", 0))
    assert reply.ids == [5] * 8 and len(client.seen) == 8


def cut_once(whole: list[int]) -> Callable[[SeenRequest], Reply]:
    """Two ids by version 0, then the rest by version 1."""

    def say(seen: SeenRequest) -> Reply:
        if "-call" in seen.request_id:
            return Reply(ids=whole[2:], logprobs=[-0.5] * len(whole[2:]), version=1)
        return Reply(ids=whole[:2], logprobs=[-0.25] * 2, version=0, finish_reason="abort")

    return say


async def test_a_turn_lists_each_of_its_calls(renderer: Renderer) -> None:
    whole = renderer.tokenizer.encode("red", add_special_tokens=False) * 3 + [renderer.stop_ids[0]]
    async with ScriptedEndpoint(cut_once(whole)) as endpoint, HttpClient(endpoint.url, name="one") as client:
        sample = await play(make_loop(renderer, client, max_turn_tokens=50))
    trajectory = sample.trajectory
    assert trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0
    (turn,) = trajectory.turns
    assert turn.sampled_ids == whole and turn.versions == [0, 0] + [1] * (len(whole) - 2)
    first, second = endpoint.seen
    assert second.token_ids == first.token_ids + whole[:2]
    assert [_told(call) for call in turn.calls] == [
        (0, 2, 0, f"{trajectory.id}-0", "one", "abort", 50, first.sampling["seed"]),
        (2, len(whole), 1, f"{trajectory.id}-0-call1", "one", "stop", 48, second.sampling["seed"]),
    ]
    assert first.sampling["seed"] != second.sampling["seed"]


def _told(call: EngineCall) -> tuple[object, ...]:
    sampling = call.sampling
    return (
        call.start, call.end, call.version, call.request_id, call.engine, call.finish_reason,
        sampling["max_tokens"], sampling["seed"],
    )  # fmt: skip


async def test_f10_a_continued_call_whose_reply_is_lost_is_repeated_under_another_id(renderer: Renderer) -> None:
    whole = renderer.tokenizer.encode("red", add_special_tokens=False) * 3 + [renderer.stop_ids[0]]
    faults = iter([None, "lost_reply"])
    endpoint = ScriptedEndpoint(cut_once(whole), fault=lambda: next(faults, None))  # type: ignore[arg-type]
    retry = RetryPolicy(wait_s=0.002)
    async with endpoint, HttpClient(endpoint.url, retry=retry) as client:
        sample = await play(make_loop(renderer, client, max_turn_tokens=50))
    (turn,) = sample.trajectory.turns
    assert turn.sampled_ids == whole
    id = sample.trajectory.id
    assert [call.request_id for call in turn.calls] == [f"{id}-0", f"{id}-0-call1-try1"]
    assert endpoint.aborted == [f"generate-tokens-{id}-0-call1"]
