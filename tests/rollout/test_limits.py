"""Windows, budgets and endings: what bounds a reply, what counts as the end, and what the metrics are of."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch.rows import build_rows
from agentrl.config import RolloutConfig
from agentrl.environment import EnvironmentContext, StepResult
from agentrl.errors import ContextOverflow
from agentrl.progress import rollout_metrics
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.testing.endpoint import Reply, ScriptedEndpoint, SeenRequest
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.tool import ToolResult
from agentrl.types import CallStatus, Group, Message, Purpose, StopReason, Task, Trajectory
from tests.rollout.loops import TextClient, call, make_loop, play

REPEAT = call("repeat", '{"text": "red"}')


def group(size: int) -> Group:
    task = Toy.tasks(ToyConfig(), "train")[0]
    return Group(id="g", run="run", task=task, purpose=Purpose.TRAIN, ordinal=0, size=size)


async def first_context(renderer: Renderer, env: type[Toy] = Toy) -> int:
    """Ids of the first prompt."""
    client = TextClient(renderer, "red")
    await play(make_loop(renderer, client, env=env))
    return len(client.seen[0][0])


async def test_e02_each_call_asks_for_the_room_that_is_left_and_none_ends_the_episode(renderer: Renderer) -> None:
    window = await first_context(renderer) + 120
    client = TextClient(renderer, call("repeat", '{"text": "red ", "times": 200}'))
    sample = await play(make_loop(renderer, client, window=window, max_turn_tokens=100))
    assert [params.max_tokens for _, params in client.seen] == [100]  # then the tool's output left no room
    trajectory = sample.trajectory
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW and sample.reward == 0.0
    assert len(trajectory.turns) == 1 and len(trajectory.turns[0].logprobs) == len(trajectory.turns[0].sampled_ids)


async def test_e02_an_overflow_that_the_server_finds_ends_alike_and_keeps_the_earlier_turns(renderer: Renderer) -> None:
    client = TextClient(renderer, REPEAT, ContextOverflow("HTTP 400: maximum context length"))
    sample = await play(make_loop(renderer, client))
    assert sample.trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW and sample.grade is not None
    assert len(sample.trajectory.turns) == 1 and "HTTP 400" in str(sample.trajectory.error)
    (row,) = build_rows(sample)
    assert row.mask.sum() == len(sample.trajectory.turns[0].sampled_ids)


async def test_e03_an_answer_that_fills_the_window_keeps_its_reward(renderer: Renderer) -> None:
    answer = len(renderer.tokenizer.encode("red", add_special_tokens=False)) + 1
    window = await first_context(renderer) + answer + 1
    client = TextClient(renderer, "red")
    sample = await play(make_loop(renderer, client, window=window))
    # Whatever the template would write after the answer doesn't fit any more, and nobody asks for it.
    closing = len(renderer.extend(Message(role="assistant", content="red"), [], []))
    assert client.seen[0][1].max_tokens == answer + 1 < answer + closing
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0


async def test_e04_window_budget_and_turn_are_three_limits_and_nothing_is_cut_from_the_front(
    renderer: Renderer,
) -> None:
    num_prompt = await first_context(renderer)
    client = TextClient(renderer, REPEAT)
    limits = {"max_turn_tokens": 100, "max_episode_tokens": 150, "max_turns": 50}
    assert num_prompt > 150
    sample = await play(make_loop(renderer, client, window=50 * num_prompt, **limits))
    # The prompt is longer than a turn and than the whole budget may be: they bound what is sampled, not what is read.
    contexts = [ids for ids, _ in client.seen]
    assert len(contexts[0]) == num_prompt and all(ids[:num_prompt] == contexts[0] for ids in contexts)
    assert sample.trajectory.stop_reason is StopReason.TOKEN_BUDGET
    num_sampled = 0
    for (_, params), turn in zip(client.seen, sample.trajectory.turns, strict=True):
        assert params.max_tokens == min(100, 150 - num_sampled)
        num_sampled += len(turn.sampled_ids)


@pytest.mark.parametrize("room", [-5, 0, 1])
async def test_e02_a_first_prompt_that_leaves_no_room_is_an_overflow_without_a_call(
    renderer: Renderer, room: int
) -> None:
    client, recorder = TextClient(renderer, "red"), MemoryRecorder()
    sample = await play(make_loop(renderer, client, recorder, window=await first_context(renderer) + room))
    assert sample.trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert sample.grade is not None and sample.reward == 0.0 and recorder.finished[0].artifacts.data["collected"]
    assert [params.max_tokens for _, params in client.seen] == [room] * (room > 0)


async def contexts_of_a_tool_call(renderer: Renderer) -> tuple[int, int]:
    """(ids after the first reply, ids of the second prompt) where the tool is called once."""
    client = TextClient(renderer, REPEAT, "red")
    trajectory = (await play(make_loop(renderer, client))).trajectory
    return len(trajectory.full(0)), len(client.seen[1][0])


@pytest.mark.parametrize("room", [-1, 0, 1, 2])
async def test_e02_a_tool_result_may_fill_the_window_to_the_last_id(renderer: Renderer, room: int) -> None:
    after_reply, second_prompt = await contexts_of_a_tool_call(renderer)
    window = second_prompt + room
    assert after_reply < window - 1
    client = TextClient(renderer, REPEAT, "x")
    trajectory = (await play(make_loop(renderer, client, window=window))).trajectory
    # The call itself fitted and ran; its result is on record whether or not there is room to answer it.
    (parsed,) = trajectory.turns[0].tool_calls
    assert parsed.status is CallStatus.OK and parsed.result == "red"
    assert [params.max_tokens for _, params in client.seen[1:]] == [room] * (room > 0)
    assert len(trajectory.turns) == len(client.seen)
    fits = room == 2  # the "x" and its stop id
    assert trajectory.stop_reason is (StopReason.COMPLETED if fits else StopReason.CONTEXT_OVERFLOW)


async def test_e03_a_reply_that_is_its_stop_id_alone_fits_into_the_last_place(renderer: Renderer) -> None:
    class StopsAtOnce(TextClient):
        async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
            generation = await super().generate(ids, sampling, request_id)
            stop, span = renderer.stop_ids[0], replace(generation.spans[0], end=1)
            return replace(generation, ids=[stop], logprobs=[-0.1], spans=[span], finish_reason="stop")

    client = StopsAtOnce(renderer, "")
    sample = await play(make_loop(renderer, client, window=await first_context(renderer) + 1))
    assert client.seen[0][1].max_tokens == 1
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 0.0


texts = st.lists(
    st.one_of(
        st.text(st.sampled_from("ab \n<|é😀"), max_size=12),
        st.builds(lambda text, times: call("repeat", json.dumps({"text": text, "times": times})),
                  st.text(st.sampled_from("ab <|"), max_size=4), st.integers(0, 40)),
        st.just("<tool_call>{broken"),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    texts=texts,
    room=st.integers(-20, 250),
    max_turn_tokens=st.integers(1, 80),
    max_episode_tokens=st.integers(1, 300),
    max_observation_tokens=st.integers(16, 64),
)
def test_e04_whatever_the_limits_no_id_is_dropped_and_none_is_asked_for_past_them(
    renderer: Renderer, texts: list[str], room: int, **limits: int
) -> None:
    """Each context is the whole of what came before and something new behind it; the system prompt is its front."""
    client = TextClient(renderer, *texts)

    async def episode() -> Trajectory:
        window = await first_context(renderer, SystemPrompt) + room
        loop = make_loop(renderer, client, env=SystemPrompt, window=window, max_turns=6, max_bad_calls=6, **limits)
        trajectory = (await play(loop)).trajectory
        assert all(len(ids) + params.max_tokens <= window for ids, params in client.seen)
        return trajectory

    trajectory = asyncio.run(episode())
    start = renderer.start(SYSTEM, [tool.spec() for tool in SystemPrompt.tools])
    so_far: list[int] = []
    num_sampled = 0
    for turn, (ids, params) in zip(trajectory.turns, client.seen, strict=True):
        assert ids[: len(start)] == start and ids[: len(so_far)] == so_far and len(ids) > len(so_far)
        assert ids == trajectory.context(turn.index)
        assert 1 <= params.max_tokens <= min(limits["max_turn_tokens"], limits["max_episode_tokens"] - num_sampled)
        so_far, num_sampled = ids + turn.sampled_ids, num_sampled + len(turn.sampled_ids)
    assert trajectory.stop_reason is not None and trajectory.stop_reason.ending.graded
    assert trajectory.turns or trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW


SYSTEM = [Message(role="system", content="Never say blue."), Message(role="user", content="Say red.")]


class SystemPrompt(Toy):
    """Opens with a system message."""

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        return SYSTEM


class Ending(Toy):
    """Ends the episode by itself after a tool call."""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        return StepResult(terminated=True)


@pytest.mark.parametrize(("env", "text"), [(Ending, REPEAT), (Toy, call("submit", '{"answer": "red"}')), (Toy, "red")])
async def test_e05_the_end_is_the_recorded_reason_not_a_token(renderer: Renderer, env: type[Toy], text: str) -> None:
    class NoStopId(TextClient):
        """A server that ends replies at stop strings: no stop id is sampled."""

        async def generate(self, ids: list[int], sampling: object, request_id: str) -> object:  # type: ignore[override]
            generation = await super().generate(ids, sampling, request_id)  # type: ignore[arg-type]
            keep = len(generation.ids) - 1
            span = replace(generation.spans[0], end=keep)
            return replace(generation, ids=generation.ids[:keep], logprobs=generation.logprobs[:keep], spans=[span])

    for client in (TextClient(renderer, text), NoStopId(renderer, text + " ")):
        sample = await play(make_loop(renderer, client, env=env))
        assert sample.trajectory.stop_reason is StopReason.COMPLETED
        (row,) = build_rows(sample)
        # Every sampled id is trained, whichever it is.
        assert row.mask.sum() == len(sample.trajectory.turns[0].sampled_ids) == (row.weights > 0).sum()


async def test_e06_more_ids_than_were_asked_for_are_refused_and_metrics_are_of_what_is_stored(
    renderer: Renderer,
) -> None:
    replies = iter([[5, 6, 7, 8], [5, renderer.stop_ids[0]]])
    recorder = MemoryRecorder()
    async with ScriptedEndpoint(lambda seen: Reply(ids=next(replies))) as endpoint, HttpClient(endpoint.url) as client:
        loop = make_loop(renderer, client, recorder, max_turn_tokens=2)
        groups = await RolloutPool(loop, RolloutConfig(concurrency=1), 0).run([group(1)])
    first, second = recorder.finished
    assert "4 ids came where 2 were allowed" in str(first.error) and first.turns == []
    assert second.stop_reason is StopReason.COMPLETED
    metrics = rollout_metrics(groups, 1.0)
    assert metrics["turn_tokens_max"] == metrics["num_sampled_tokens"] == 2


async def test_d15_samples_of_a_group_have_seeds_of_their_own_and_equal_ones_are_counted(renderer: Renderer) -> None:
    stop = renderer.stop_ids[0]

    async def play_group(by_seed: bool) -> tuple[list[int], int]:
        def say(seen: SeenRequest) -> Reply:
            seed = seen.sampling["seed"]
            return Reply(ids=[10 + seed % 97, 10 + seed // 97 % 97, stop] if by_seed else [42, stop])

        endpoint = ScriptedEndpoint(say)
        async with endpoint, HttpClient(endpoint.url) as client:
            groups = await RolloutPool(make_loop(renderer, client), RolloutConfig(), 42).run([group(4)])
        seeds = sorted(seen.sampling["seed"] for seen in endpoint.seen)
        return seeds, rollout_metrics(groups, 1.0)["duplicate_completions"]

    seeds, duplicates = await play_group(by_seed=True)
    assert len(set(seeds)) == 4 and duplicates == 0
    # A server that doesn't heed the seed is seen; the seeds follow from the plan, so they are the same again.
    again, duplicates = await play_group(by_seed=False)
    assert again == seeds and duplicates == 3


BROKEN = (
    '<tool_call>{"arguments":{}}</tool_call>',
    "<tool_call></tool_call>",
    "<tool_call>[1]</tool_call>",
    "<tool_call>null</tool_call>",
    '<tool_call>{"name":"repeat"}{"x":1}</tool_call>',
)


async def test_b02_calls_that_cant_be_read_are_counted_answered_and_flood_no_log(
    renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    statuses: Counter[CallStatus] = Counter()
    for text in BROKEN:
        client = TextClient(renderer, *[text] * 200)
        loop = make_loop(renderer, client, max_turns=200, max_bad_calls=201, window=10**6, max_episode_tokens=10**6)
        sample = await play(loop)
        assert sample.trajectory.stop_reason is StopReason.MAX_TURNS and sample.grade is not None
        statuses += Counter(parsed.status for turn in sample.trajectory.turns for parsed in turn.tool_calls)
        observations = [message.text for turn in sample.trajectory.turns[1:] for message in turn.prompt_messages]
        assert len(observations) == 199 and all(len(text) < 500 for text in observations)
        assert all("the call was not run" in text for text in observations)
    assert statuses == {CallStatus.INVALID_JSON: 1000}
    assert len([record for record in caplog.records if record.name.startswith("agentrl")]) <= len(BROKEN)


async def test_b02_after_max_bad_calls_in_a_row_the_episode_ends(renderer: Renderer) -> None:
    client = TextClient(renderer, BROKEN[0], REPEAT, *BROKEN)
    sample = await play(make_loop(renderer, client, max_bad_calls=3, max_turns=50))
    assert sample.trajectory.stop_reason is StopReason.PARSE_LIMIT and len(sample.trajectory.turns) == 5


@pytest.mark.parametrize("name", ["solve_equation", "Repeat", "repeat ", "functions.repeat"])
async def test_b04_an_invented_tool_is_answered_with_the_known_ones_and_the_episode_goes_on(
    renderer: Renderer, name: str
) -> None:
    sample = await play(make_loop(renderer, TextClient(renderer, call(name, '{"text": "red"}'), "red")))
    first, second = sample.trajectory.turns
    assert [parsed.status for parsed in first.tool_calls] == [CallStatus.UNKNOWN_TOOL]
    (answer,) = second.prompt_messages
    assert answer.role == "tool" and "Known tools: fail, repeat, sleep, submit" in answer.text
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 1.0
