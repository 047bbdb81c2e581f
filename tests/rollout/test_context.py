"""What a turn is sampled after: continued, or a branch where the conversation was written anew (T2, T3)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.batch.rows import build_rows
from agentrl.environment import EnvironmentContext, StepResult
from agentrl.rollout.context import Context, num_common
from agentrl.rollout.renderer import Mode, Renderer
from agentrl.testing.toy import Toy
from agentrl.tool import ToolResult
from agentrl.types import Message, Sample, StopReason, Task, Trajectory
from tests.rollout.loops import TextClient, make_loop, play
from tests.rollout.templates import add, said, tokenizer, user


@functools.cache
def made(family: str, mode: Mode) -> Renderer:
    return Renderer(tokenizer(family), mode=mode)


def env_of(*steps: StepResult) -> type[Toy]:
    """An environment that answers with these steps, then ends."""

    class Scripted(Toy):
        num_steps = 0

        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            self.num_steps += 1
            return steps[self.num_steps - 1] if self.num_steps <= len(steps) else StepResult(terminated=True)

    return Scripted


async def played(renderer: Renderer, texts: list[str], *steps: StepResult) -> tuple[Sample, TextClient]:
    client = TextClient(renderer, *texts)
    sample = await play(make_loop(renderer, client, env=env_of(*steps)))
    assert sample.trajectory.stop_reason is StopReason.COMPLETED, sample.trajectory.error
    # Whatever was kept or written anew, the record says what the engine saw.
    assert [ids for ids, _ in client.seen] == [sample.trajectory.context(i) for i in range(len(client.seen))]
    return sample, client


def counted(sample: Sample) -> list[list[int]]:
    """Of each turn, the sampled ids that have mask 1, over all Rows."""
    ids: list[list[int]] = [[] for _ in sample.trajectory.turns]
    for row in build_rows(sample):
        for place in range(len(row)):
            if row.mask[place]:
                ids[int(row.turn_index[place])].append(int(row.ids[place]))
    return ids


def parents(trajectory: Trajectory) -> list[tuple[int | None, int]]:
    return [(turn.parent, turn.keep) for turn in trajectory.turns]


THOUGHTS = ["<think>\nfirst thought\n</think>\n\none", "<think>\nsecond thought\n</think>\n\ntwo"]


async def test_rerender_branches_where_the_template_drops_earlier_thinking() -> None:
    renderer = made("qwen3", "rerender")
    sample, client = await played(renderer, THOUGHTS, StepResult(messages=[user("again")]))
    first, second = sample.trajectory.turns
    assert second.parent == 0 and second.keep == len(first.prompt_ids)  # up to where the thought began
    said_again = renderer.decode(client.seen[1][0])
    assert "first thought" not in said_again and said_again.endswith(
        "one<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n"
    )
    assert sample.trajectory.num_prefix_breaks == 1
    # Two Rows, and each sampled id counts once, in the context in which it was sampled.
    assert [row.end_turn for row in build_rows(sample)] == [0, 1]
    assert counted(sample) == [first.sampled_ids, second.sampled_ids]
    assert sample.trajectory.renderer_mode == "rerender"


async def test_append_keeps_the_thinking() -> None:
    renderer = made("qwen3", "append")
    sample, client = await played(renderer, THOUGHTS, StepResult(messages=[user("again")]))
    assert parents(sample.trajectory) == [(None, 0), (0, len(sample.trajectory.full(0)))]
    assert "first thought" in renderer.decode(client.seen[1][0])
    assert len(build_rows(sample)) == 1


async def test_rerender_is_one_line_where_the_template_rewrites_nothing() -> None:
    texts = ["one", "two", "three"]
    steps = [StepResult(messages=[user("again")])] * 2
    anew, _ = await played(made("smollm2", "rerender"), texts, *steps)
    behind, _ = await played(made("smollm2", "append"), texts, *steps)
    assert parents(anew.trajectory) == parents(behind.trajectory)
    assert anew.trajectory.full(2) == behind.trajectory.full(2) and len(build_rows(anew)) == 1


async def test_a_summary_replaces_the_conversation_and_what_was_sampled_stays_trained() -> None:
    renderer = made("smollm2", "append")
    system = Message(role="system", content="be brief")
    summary = [system, user("so far: one and two were said")]
    steps = [
        StepResult(history=[system, user("begin")]),
        StepResult(messages=[user("again")]),
        StepResult(history=summary, messages=[user("go on")]),
        StepResult(messages=[user("and on")]),
    ]
    sample, client = await played(renderer, ["zero", "one", "two", "three", "four"], *steps)
    trajectory = sample.trajectory
    parent, keep = parents(trajectory)[3]
    assert parent == 2 and 0 < keep < len(trajectory.turns[1].prompt_ids)  # the system message is shared
    text = renderer.decode(client.seen[3][0])
    assert "begin" not in text and text.index("be brief") < text.index("so far") < text.index("go on")
    assert parents(trajectory)[4] == (3, len(trajectory.full(3)))
    assert [message.text for message in trajectory.turns[3].prompt_messages] == [
        "be brief",
        "so far: one and two were said",
        "go on",
    ]
    assert counted(sample) == [turn.sampled_ids for turn in trajectory.turns]
    assert [row.end_turn for row in build_rows(sample)] == [0, 2, 4]


async def test_which_branch_is_continued_is_decided_by_ids() -> None:
    """The environment goes back to the first conversation, word by word: its line is continued, not the last one."""
    renderer = made("smollm2", "append")
    first = Toy.tasks(make_loop(renderer, None).env_config, "train")[0].messages
    steps = [
        StepResult(history=[user("something else")]),
        StepResult(history=[*first, said("one"), user("back again")]),
    ]
    sample, _ = await played(renderer, ["one", "two", "three"], *steps)
    assert parents(sample.trajectory)[2] == (0, len(sample.trajectory.full(0)))
    assert [row.end_turn for row in build_rows(sample)] == [1, 2]


WORDS = st.sampled_from(["a", "b b", "c", "\U0001f600"])
ACTIONS = st.lists(st.tuples(st.sampled_from(["follow", "cut", "replace"]), WORDS, st.integers(0, 3)), max_size=7)


@settings(deadline=None, max_examples=60)
@given(ACTIONS, st.sampled_from(["append", "rerender"]), st.lists(WORDS, min_size=9, max_size=9))
def test_the_parent_shares_the_longest_prefix_and_of_equals_is_the_latest(
    actions: list[tuple[str, str, int]], mode: Mode, replies: list[str]
) -> None:
    """Against a search over all turns."""
    renderer = made("smollm2", mode)
    context, fulls = Context(renderer), []
    prompt = context.start([user("hi")])
    for turn, (action, word, number) in enumerate([*actions, ("follow", "end", 0)]):
        whole = [*(fulls[prompt.parent][: prompt.keep] if prompt.parent is not None else []), *prompt.new_ids]
        context.take(prompt)
        assert context.ids == whole and prompt.new_ids and prompt.num_ids == len(whole)
        if fulls and (mode == "rerender" or (turn and actions[turn - 1][0] != "follow")):
            shared = [(num_common(full, whole[:-1]), index) for index, full in enumerate(fulls)]
            assert (prompt.keep, prompt.parent) == max(shared)
        sampled = [id for character in replies[turn] for id in renderer.encode_text(character)] + [renderer.stop_ids[0]]
        context.reply(turn, sampled, said(replies[turn]))
        fulls.append(whole + sampled)
        history: dict[str, Any] = {
            "follow": None, "cut": context.messages[: max(1, number)], "replace": [user(word), said("x")],
        }  # fmt: skip
        prompt = context.follow([user(word)], history[action])
        assert [message.text for message in prompt.messages][-1] == word


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_num_common(left: list[int], right: list[int]) -> None:
    number = num_common(left, right)
    assert left[:number] == right[:number]
    assert number in (len(left), len(right)) or left[number] != right[number]


async def test_a_history_that_is_no_list_of_messages_ends_the_rollout_as_the_environments_fault() -> None:
    wrong = StepResult(history="a summary")  # type: ignore[arg-type]
    client = TextClient(made("smollm2", "append"), "one")
    sample = await play(make_loop(made("smollm2", "append"), client, env=env_of(wrong)))
    assert sample.trajectory.stop_reason is StopReason.ENV_ERROR
    assert "history" in str(sample.trajectory.error)


@pytest.mark.parametrize("mode", ["append", "rerender"])
async def test_a_step_cant_speak_for_the_policy(mode: Mode) -> None:
    step = StepResult(messages=[said("I did it")])
    sample = await play(make_loop(made("smollm2", mode), TextClient(made("smollm2", mode), "one"), env=env_of(step)))
    assert sample.trajectory.stop_reason is StopReason.ENV_ERROR
    assert "assistant's message" in str(sample.trajectory.error)


async def test_an_environment_may_choose_its_tools_in_reset() -> None:
    class Choosing(Toy):
        async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
            self.tools = [add]
            return await super().reset(task, ctx)

    renderer = made("qwen3", "append")
    client = TextClient(renderer, "red")
    await play(make_loop(renderer, client, env=Choosing))
    assert '"add"' in renderer.decode(client.seen[0][0]) and '"repeat"' not in renderer.decode(client.seen[0][0])
