"""`ctx.chat`: another agent's replies, recorded as turns that are not trained, and what happens when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.batch.rows import build_rows
from agentrl.cli import main
from agentrl.config_servers import ChatConfig
from agentrl.environment import EnvironmentContext, StepResult
from agentrl.errors import ConfigError, EngineError
from agentrl.progress import Silent
from agentrl.rollout.chat import chat_client
from agentrl.rollout.chat_client import ChatClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.renderer import Renderer
from agentrl.run import train
from agentrl.store import Store
from agentrl.testing.chat import ChatFault, ScriptedChat
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy
from agentrl.tool import ToolResult
from agentrl.types import Artifacts, Grade, Message, Sample, Sampler, StopReason, Task, Trajectory
from tests.rollout.loops import TextClient, make_loop, play
from tests.small import EvenIds, small_config


def user(text: str) -> Message:
    return Message(role="user", content=text)


class Customer(Toy):
    """A simulated user opens the conversation, answers each reply, and hangs up by saying bye; a judge looks on."""

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.ctx = ctx
        self.verdict = ""
        opening = await ctx.chat("user", [user("Open.")])
        return [*task.messages, user(opening.text)]

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        answer = await self.ctx.chat("user", [user(f"It said {reply.text}.")])
        return StepResult(messages=[user(answer.text)], terminated=answer.text == "bye")

    async def collect(self) -> Artifacts:
        judged = await self.ctx.chat("judge", [user("Was it good?")])
        return Artifacts(data={"verdict": judged.text})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=float(artifacts.data["verdict"] == "good"))


def say(messages: list[dict[str, Any]]) -> str:
    asked = messages[-1]["content"]
    if asked == "Was it good?":
        return "good"
    return "bye" if "goodbye" in asked else f"and then? ({asked})"


async def converse(
    renderer: Renderer, server: ScriptedChat, recorder: MemoryRecorder | None = None, **options: Any
) -> tuple[Trajectory, Grade | None]:
    client = ChatClient(ChatConfig(url=server.url, model="scripted", max_tries=3, retry_wait_s=0.01, **options))
    loop = make_loop(renderer, TextClient(renderer, "hello", "more", "goodbye"), recorder, env=Customer)
    loop.chat = client
    try:
        sample = await play(loop)
    finally:
        await client.close()
    return sample.trajectory, sample.grade


async def test_a_user_simulator_and_a_judge_are_turns_that_are_not_trained(renderer: Renderer) -> None:
    recorder = MemoryRecorder()
    async with ScriptedChat(say) as server:
        trajectory, grade = await converse(renderer, server, recorder)
    assert trajectory.stop_reason is StopReason.COMPLETED and grade is not None and grade.reward == 1.0
    assert [turn.agent for turn in trajectory.turns] == [
        "user",
        "main",
        "user",
        "main",
        "user",
        "main",
        "user",
        "judge",
    ]
    assert [turn.index for turn in trajectory.turns] == list(range(8)) == [turn.index for _, turn in recorder.turns]
    for turn in trajectory.turns:
        assert turn.trained == (turn.agent == "main")
        if not turn.trained:
            assert (turn.sampled_ids, turn.prompt_ids, turn.sampler) == ([], [], Sampler.TEXT)
            (call,) = turn.calls
            assert call.engine.startswith("scripted at http://127.0.0.1") and call.version == -1
    first, second, third = trajectory.turns_of()
    # The policy's turns continue one another, past the turns of the others.
    assert (first.parent, second.parent, third.parent) == (None, first.index, second.index)
    assert second.keep == len(trajectory.full(first.index))
    assert trajectory.turns[2].message.text in renderer.decode(second.prompt_ids)


async def test_what_others_said_is_never_in_a_row_as_theirs(renderer: Renderer) -> None:
    async with ScriptedChat(say) as server:
        trajectory, grade = await converse(renderer, server)
    rows = build_rows(Sample(trajectory=trajectory, grade=grade))
    (row,) = rows
    mains = {turn.index: turn for turn in trajectory.turns_of()}
    assert set(row.turn_index) == set(mains)
    assert list(row.ids[row.mask == 1]) == [i for turn in mains.values() for i in turn.sampled_ids]


async def test_max_turns_counts_the_policys_own(renderer: Renderer) -> None:
    async with ScriptedChat(lambda messages: "go on") as server:
        client = ChatClient(ChatConfig(url=server.url, model="scripted"))
        loop = make_loop(renderer, TextClient(renderer, "hello"), env=Customer, max_turns=3)
        loop.chat = client
        sample = await play(loop)
        await client.close()
    assert sample.trajectory.stop_reason is StopReason.MAX_TURNS and len(sample.trajectory.turns_of()) == 3


async def test_questions_at_the_same_time_are_all_recorded_in_the_order_of_replies(renderer: Renderer) -> None:
    class Jury(Customer):
        async def collect(self) -> Artifacts:
            votes = await asyncio.gather(*(self.ctx.chat(f"judge-{n}", [user("Was it good?")]) for n in range(5)))
            return Artifacts(data={"verdict": votes[0].text, "votes": len(votes)})

    async with ScriptedChat(say) as server:
        client = ChatClient(ChatConfig(url=server.url, model="scripted"))
        recorder = MemoryRecorder()
        loop = make_loop(renderer, TextClient(renderer, "goodbye"), recorder, env=Jury)
        loop.chat = client
        trajectory = (await play(loop)).trajectory
        await client.close()
    assert {turn.agent for turn in trajectory.turns[3:]} == {f"judge-{n}" for n in range(5)}
    assert [turn.index for _, turn in recorder.turns] == list(range(8))
    assert len({turn.calls[0].request_id for turn in trajectory.turns if not turn.trained}) == 7


async def test_the_same_rollout_asks_with_the_same_seeds(renderer: Renderer) -> None:
    async with ScriptedChat(say) as server:
        await converse(renderer, server)
        await converse(renderer, server)
    seeds = [body["seed"] for body in server.seen]
    half = len(seeds) // 2
    assert seeds[:half] == seeds[half:] and len(set(seeds)) == half


@pytest.mark.parametrize("fault", [500, 429, 503, "garbage", "drop"])
async def test_a_fault_that_may_pass_is_tried_again_and_recorded_once(
    renderer: Renderer, fault: int | ChatFault
) -> None:
    async with ScriptedChat(say, faults=[fault, fault]) as server:
        trajectory, _ = await converse(renderer, server)
    assert trajectory.stop_reason is StopReason.COMPLETED
    assert len(server.seen) == 5 + 2 and len([turn for turn in trajectory.turns if not turn.trained]) == 5


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ([500] * 3, "HTTP 500: broken on purpose"),
        (["hang"] * 3, "no answer within 0.2 s (chat.request_timeout_s)"),
        (["no_choices"] * 3, "no choices[0].message"),
        (["no_text"], "gave an empty reply"),
        (["flood"], "longer than 8388608 bytes"),
        ([404], "chat.url ends before /chat/completions"),
    ],
)
async def test_an_endpoint_that_fails_ends_the_rollout_as_a_fault(
    renderer: Renderer, faults: list[Any], says: str
) -> None:
    async with ScriptedChat(say, faults=faults) as server:
        trajectory, grade = await converse(renderer, server, request_timeout_s=0.2 if "hang" in faults else 20)
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR and grade is None
    assert says in (trajectory.error or "") and server.url in (trajectory.error or "")
    assert len(server.seen) == len(faults)


async def test_the_key_comes_from_the_environment_and_is_in_no_message(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_KEY", "hush-hush")
    async with ScriptedChat(say, key="hush-hush") as server:
        trajectory, _ = await converse(renderer, server, key_env="CHAT_KEY")
        assert trajectory.stop_reason is StopReason.COMPLETED
    async with ScriptedChat(say, key="another") as server:  # its answer holds the key that it got
        refused, _ = await converse(renderer, server, key_env="CHAT_KEY")
    assert "HTTP 401" in (refused.error or "") and "chat.key_env" in (refused.error or "")
    assert "hush-hush" not in f"{trajectory!r}{refused!r}"


def test_a_key_that_isnt_there_is_named_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        ChatClient(ChatConfig(url="http://127.0.0.1:9", model="m", key_env="NO_SUCH_KEY"))


async def test_without_an_endpoint_the_remedy_is_named(renderer: Renderer) -> None:
    loop: AgentLoop = make_loop(renderer, TextClient(renderer, "hello"), env=Customer)
    loop.chat = ChatClient(ChatConfig())
    trajectory = (await play(loop)).trajectory
    assert trajectory.stop_reason is StopReason.ENGINE_ERROR and "chat.url=…" in (trajectory.error or "")


async def test_the_policy_itself_cant_be_asked(renderer: Renderer) -> None:
    class Echo(Toy):
        async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
            return [await ctx.chat("main", task.messages)]

    async with ScriptedChat(say) as server:
        loop = make_loop(renderer, TextClient(renderer, "hello"), env=Echo)
        loop.chat = ChatClient(ChatConfig(url=server.url, model="scripted"))
        trajectory = (await play(loop)).trajectory
        await loop.chat.close()
    assert '"main" is the policy itself' in (trajectory.error or "") and server.seen == []


async def test_grading_cant_ask_and_is_unmeasured_never_0(renderer: Renderer) -> None:
    class AsksInGrade(Toy):
        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            await ctx.chat("judge", task.messages)
            return Grade(reward=1.0)

    sample = await play(make_loop(renderer, TextClient(renderer, "red"), env=AsksInGrade))
    assert sample.grade is not None and sample.grade.reward is None
    assert "ask in collect" in (sample.grade.unmeasured or "")


async def test_nothing_is_added_to_a_finished_episode(renderer: Renderer) -> None:
    kept: list[EnvironmentContext] = []

    class Late(Toy):
        async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
            kept.append(ctx)
            return task.messages

    async with ScriptedChat(say) as server:
        loop = make_loop(renderer, TextClient(renderer, "red"), env=Late)
        loop.chat = ChatClient(ChatConfig(url=server.url, model="scripted"))
        trajectory = (await play(loop)).trajectory
        with pytest.raises(RuntimeError, match="the episode has ended"):
            await kept[0].chat("user", [user("hello?")])
        await loop.chat.close()
    assert len(trajectory.turns) == 1 and server.seen == []


class Interviewed(EvenIds):
    """A simulated user speaks first, so that turn 0 is never the policy's."""

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        asked = await ctx.chat("user", [user("How many?")])
        return [*task.messages[:-1], user(f"{task.messages[-1].text} {asked.text}")]


async def test_a_run_trains_beside_a_user_simulator_and_show_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: Interviewed)
    monkeypatch.setenv("CHAT_KEY", "hush-hush")
    async with ScriptedChat(lambda messages: "Twenty\x1b[31m.", key="hush-hush") as server:
        config = small_config(
            tmp_path, tmp_path / "cache", f"chat.url='{server.url}'", "chat.model=scripted", "chat.key_env=CHAT_KEY",
            "eval.sampled=false",
        )  # fmt: skip
        summary = await train(config, Silent())
    store = Store.open(tmp_path / "agentrl.db")
    trained = [t for step in store.steps(summary.run) for t in store.trajectories_of(summary.run, step.id)]
    assert len(trained) == 16
    # The weights of the first step were published, although no turn 0 holds ids to prove them by.
    last = store.load_sample(trained[-1]).trajectory
    assert {version for turn in last.turns_of() for version in turn.versions} == {1}
    sample = store.load_sample(trained[0])
    assert [(turn.agent, turn.trained) for turn in sample.trajectory.turns[:2]] == [("user", False), ("main", True)]
    assert all(row.end_turn > 0 for step in store.steps(summary.run) for row in store.rows_of(summary.run, step.id))
    store.close()
    assert b"hush-hush" not in (tmp_path / "agentrl.db").read_bytes()
    assert main(["show", trained[0], "--db", str(tmp_path / "agentrl.db")]) == 0
    out = capsys.readouterr().out
    assert "turn 0  agent user  not trained  by scripted at http://127.0.0.1" in out
    assert "  user: How many?" in out and "  → Twenty\\x1b[31m." in out and "turn 1  sampler engine" in out


async def test_ask_raises_what_a_caller_can_act_on() -> None:
    async with (
        ScriptedChat(say, faults=[400]) as server,
        chat_client(ChatConfig(url=server.url, model="scripted")) as client,
    ):
        with pytest.raises(EngineError, match=r"request 'x' to http.*/v1/chat/completions: HTTP 400"):
            await client.ask([user("hi")], sampling={"seed": 1}, request_id="x")
        reply = await client.ask([user("hi")], sampling={"seed": 1}, request_id="y")
    assert reply.completion.message.text == "and then? (hi)" and reply.completion.finish_reason == "stop"
    assert server.seen[-1] == {
        "model": "scripted", "messages": [{"role": "user", "content": "hi"}], "temperature": 1.0, "max_tokens": 1024,
        "seed": 1,
    }  # fmt: skip
