"""Faults of environments, tools and engines: each rollout ends once, is stored once, and takes nobody along (R1–R4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl.config import RolloutConfig
from agentrl.environment import EnvironmentContext, StepResult
from agentrl.errors import EngineError, EngineFault, FaultShareError
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.faults import describe
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.retry import RetryPolicy, repeat
from agentrl.testing.faulty import HOOKS, KINDS, Faulty, FaultyConfig
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.tool import ToolResult
from agentrl.types import Artifacts, CallStatus, Grade, Group, Message, Purpose, Sample, StopReason, Task, Trajectory
from tests.rollout.loops import TextClient, call, make_loop, play

REPEAT = call("repeat", '{"text": "red"}')


def group(size: int, id: str = "g", ordinal: int = 0) -> Group:
    task = Toy.tasks(ToyConfig(), "train")[0]
    return Group(id=id, run="run", task=task, purpose=Purpose.TRAIN, ordinal=ordinal, size=size)


def endings(samples: Sequence[Sample]) -> list[str]:
    return [str(sample.trajectory.stop_reason) for sample in samples]


# ---- siblings ----


async def test_f01_one_failing_rollout_leaves_its_siblings(renderer: Renderer) -> None:
    class Broken(TextClient):
        """Turn 2 of the fifth rollout breaks, whatever the attempt."""

        order: list[str] = []  # noqa: RUF012 - of this test's rollouts

        async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
            rollout, turn = request_id.rsplit("-", 1)
            if turn == "0":
                self.order.append(rollout)
            if turn == "2" and rollout == self.order[4]:
                raise ConnectionResetError("reset by peer")
            return await super().generate(ids, sampling, request_id)

    recorder = MemoryRecorder()
    loop = make_loop(renderer, Broken(renderer, REPEAT), recorder, max_turns=3)
    (played,) = await RolloutPool(loop, RolloutConfig(max_attempts=1), 0).run([group(8)])
    assert sorted(endings(played.samples)) == ["engine_error"] + ["max_turns"] * 7
    assert len([sample for sample in played.samples if sample.reward is not None]) == 7
    (failed,) = [s.trajectory for s in played.samples if s.trajectory.stop_reason is StopReason.ENGINE_ERROR]
    assert len(failed.turns) == 2  # what was sampled before is kept
    assert "ConnectionResetError: reset by peer" in (failed.error or "") and "test_faults.py" in (failed.error or "")
    assert len({kept.id for kept in recorder.finished}) == len(recorder.finished) == 8


async def test_too_many_faults_stop_the_run_by_name(renderer: Renderer) -> None:
    recorder = MemoryRecorder()
    loop = make_loop(renderer, TextClient(renderer, EngineError("the server is gone")), recorder)
    pool = RolloutPool(loop, RolloutConfig(max_attempts=1, max_fault_share=0.5, concurrency=8), 0)
    with pytest.raises(BaseExceptionGroup) as caught:
        await pool.run([group(8, str(n), n) for n in range(25)])
    known, _ = caught.value.split(FaultShareError)
    assert known is not None
    message = str(_leaf(known))
    assert "101 of 200 rollouts ended in a fault (engine_error 101)" in message
    assert "rollout.max_fault_share=0.5" in message and "the server is gone" in message
    # It stopped early, and whatever had begun has its ending.
    assert len(recorder.begun) < 200 and sorted(recorder.begun) == sorted(kept.id for kept in recorder.finished)


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@pytest.mark.parametrize("share", [0.5, 1.0])
async def test_a_share_of_faults_that_is_allowed_stops_nothing(renderer: Renderer, share: float) -> None:
    class Every(TextClient):
        num = 0

        async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
            self.num += 1
            if share == 1.0 or self.num % 2:
                raise EngineError("broken")
            return await super().generate(ids, sampling, request_id)

    loop = make_loop(renderer, Every(renderer, "red"))
    (played,) = await RolloutPool(loop, RolloutConfig(max_attempts=1, max_fault_share=share), 0).run([group(30)])
    assert endings(played.samples).count("engine_error") == 30 * share


# ---- environments ----


class OneFault(Faulty):
    """The hook and the kind that a test asks for."""

    ask = ("", "")

    def __init__(self, config: FaultyConfig) -> None:
        super().__init__(config)
        self.broken_hook, self.kind = self.ask


EXPECTED = {"reset": StopReason.ENV_ERROR, "step": StopReason.ENV_ERROR, "collect": StopReason.ENV_ERROR}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hang"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_hook_that_fails_is_one_ending_and_siblings_finish(renderer: Renderer, hook: str, kind: str) -> None:
    broken = type("Broken", (OneFault,), {"ask": (hook, kind)})
    fine = type("Fine", (OneFault,), {})
    recorder = MemoryRecorder()
    loops = [
        make_loop(renderer, TextClient(renderer, "red"), recorder, env=env, config=FaultyConfig())
        for env in (broken, fine)
    ]
    bad, good = await asyncio.gather(*map(play, loops))
    assert good.trajectory.stop_reason is StopReason.COMPLETED and good.reward == 1.0
    assert bad.trajectory.stop_reason is EXPECTED.get(hook, StopReason.COMPLETED)
    if hook == "grade":
        assert bad.grade is not None and bad.grade.reward is None and "grade" in str(bad.grade.unmeasured)
    elif hook == "close":
        assert bad.reward == 1.0
    else:
        assert bad.grade is None and f"environment.{hook}" in str(bad.trajectory.error)
        # What raised is shown with the plugin's own frames.
        assert kind == "nonsense" or "agentrl/testing/faulty.py" in str(bad.trajectory.error)
    assert len(recorder.finished) == 2


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ("reset", StopReason.EPISODE_TIMEOUT),
        ("step", StopReason.EPISODE_TIMEOUT),
        ("collect", StopReason.ENV_ERROR),
        ("grade", StopReason.COMPLETED),
        ("close", StopReason.COMPLETED),
    ],
)
async def test_a_hook_that_hangs_is_given_up(renderer: Renderer, hook: str, reason: StopReason) -> None:
    env = type("Hanging", (OneFault,), {"ask": (hook, "hang")})
    limits = {"episode_timeout_s": 0.2, "grade_timeout_s": 0.2, "tool_timeout_s": 0.2}
    loop = make_loop(renderer, TextClient(renderer, "red"), env=env, config=FaultyConfig(hang_s=1.0), **limits)
    sample = await play(loop)
    assert sample.trajectory.stop_reason is reason
    if hook == "grade":
        assert sample.grade is not None and "limits.grade_timeout_s" in str(sample.grade.unmeasured)
    assert loop.threads.num_abandoned == (1 if hook in ("reset", "step") else 0)


async def test_a_reward_that_is_no_number_is_a_fault_of_the_environment(renderer: Renderer) -> None:
    class Odd(Toy):
        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            return StepResult(reward="much", terminated=True)  # type: ignore[arg-type]

    sample = await play(make_loop(renderer, TextClient(renderer, "red"), env=Odd))
    assert sample.trajectory.stop_reason is StopReason.ENV_ERROR
    assert "the reward 'much', which is no number" in str(sample.trajectory.error)


class Plain(Toy):
    """All hooks are plain functions; `step` runs an event loop of its own and waits for its siblings."""

    inside = threading.Barrier(6)

    def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:  # type: ignore[override]
        return task.messages

    def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:  # type: ignore[override]
        self.inside.wait(60)
        return asyncio.run(super().step(reply, results))

    def collect(self) -> Artifacts:  # type: ignore[override]
        return Artifacts(data={"plain": True})

    @classmethod
    def grade(  # type: ignore[override]
        cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
    ) -> Grade:
        return Grade(reward=float(artifacts.data == {"plain": True}))

    def close(self) -> None:  # type: ignore[override]
        return None


async def test_f09_plain_environments_run_in_threads_and_stall_nobody(renderer: Renderer) -> None:
    plain = make_loop(renderer, TextClient(renderer, "red"), env=Plain)
    other = make_loop(renderer, TextClient(renderer, "red"))
    playing = [asyncio.create_task(play(plain)) for _ in range(5)]
    await asyncio.sleep(0.05)
    # Five are blocked in `step` until a sixth comes; another environment's rollout passes them meanwhile.
    assert (await play(other)).reward == 1.0
    assert not any(task.done() for task in playing)
    samples = [await play(plain), *await asyncio.gather(*playing)]
    assert endings(samples) == ["completed"] * 6 and [sample.reward for sample in samples] == [1.0] * 6


class Shared(Toy):
    """Writes to a place that all episodes share."""

    place: dict[str, str] = {}  # noqa: RUF012 - shared on purpose

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.place.clear()
        await asyncio.sleep(0)
        return task.messages

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        found = dict(self.place)
        self.place["x"] = "written"
        await asyncio.sleep(0.01)
        return StepResult(terminated=bool(found), messages=[Message(role="user", content="go on")], reward=len(found))


@pytest.mark.parametrize("one_at_a_time", [True, False])
async def test_g14_episodes_that_share_state_are_played_one_at_a_time(renderer: Renderer, one_at_a_time: bool) -> None:
    env = type("Serial", (Shared,), {"one_at_a_time": one_at_a_time})
    loop = make_loop(renderer, TextClient(renderer, "red"), env=env)
    samples = await asyncio.gather(*(play(loop) for _ in range(4)), play(loop))
    # Alone, an episode finds its own writing at its second turn; beside others, it finds theirs at the first or none.
    alone = all([turn.reward for turn in sample.trajectory.turns] == [0.0, 1.0] for sample in samples)
    assert alone == one_at_a_time
    again = await play(loop)
    assert [turn.reward for turn in again.trajectory.turns] == [0.0, 1.0]


# ---- tools ----


@pytest.mark.parametrize(
    ("name", "arguments", "status", "result"),
    [
        ("explode", '{"text": "bad luck"}', CallStatus.ERROR, "Error: bad luck"),
        ("leave", '{"text": "bye"}', CallStatus.ERROR, "Error: it raised SystemExit: bye"),
        ("raw", '{"text": "ok"}', CallStatus.OK, "\udcff\x00ok"),
        ("nothing", '{"text": "ok"}', CallStatus.OK, ""),
    ],
)
async def test_whatever_a_tool_does_is_an_observation(
    renderer: Renderer, name: str, arguments: str, status: CallStatus, result: str
) -> None:
    client = TextClient(renderer, call(name, arguments), "red")
    sample = await play(make_loop(renderer, client, env=Faulty, config=FaultyConfig(fault_share=0)))
    (parsed,) = sample.trajectory.turns[0].tool_calls
    assert (parsed.status, parsed.result) == (status, result) and sample.reward == 1.0
    assert len(sample.trajectory.turns) == 2


async def test_bytes_of_a_tool_can_be_restored_and_reach_the_model_as_text(renderer: Renderer) -> None:
    client = TextClient(renderer, call("raw", '{"text": "ok"}'), "red")
    sample = await play(make_loop(renderer, client, env=Faulty, config=FaultyConfig(fault_share=0)))
    first, second = sample.trajectory.turns
    assert str(first.tool_calls[0].result).encode("utf-8", "surrogateescape") == b"\xff\x00ok"
    assert "\ufffd\x00ok" in renderer.decode(second.prompt_ids)


async def test_a_flood_of_100_mb_is_cut_before_anybody_holds_it(renderer: Renderer) -> None:
    client = TextClient(renderer, call("flood", '{"megabytes": 100}'), "red")
    limits = {"tool_timeout_s": 60, "max_result_characters": 1000, "max_observation_tokens": 64}
    loop = make_loop(renderer, client, env=Faulty, config=FaultyConfig(fault_share=0), **limits)
    sample = await play(loop)
    result = str(sample.trajectory.turns[0].tool_calls[0].result)
    assert f"[... {100 * 2**20 - 1000} characters left out ...]" in result and len(result) < 1100
    assert sample.reward == 1.0


async def test_a_tool_that_raises_a_timeout_of_its_own_is_no_timeout_of_ours(renderer: Renderer) -> None:
    from agentrl.tool import tool

    @tool
    def fetch(url: str) -> str:
        """Fetch."""
        raise TimeoutError("the site is slow")

    env = type("Fetching", (Toy,), {"tools": (fetch,)})
    loop = make_loop(renderer, TextClient(renderer, call("fetch", '{"url": "x"}'), "red"), env=env)
    (parsed,) = (await play(loop)).trajectory.turns[0].tool_calls
    assert parsed.status is CallStatus.ERROR and parsed.result == "Error: the site is slow"
    assert loop.threads.num_abandoned == 0


# ---- stops and time limits ----


class Slow(Toy):
    """The hook that a test names waits for ever; what is entered and left is told."""

    hook = "grade"
    entered: asyncio.Event
    closed: list[str]

    @classmethod
    async def wait(cls, hook: str) -> None:
        if hook == cls.hook:
            cls.entered.set()
            await asyncio.sleep(3600)

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        await self.wait("step")
        return await super().step(reply, results)

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        await cls.wait("grade")
        return Grade(reward=1.0)

    async def close(self) -> None:
        self.closed.append("closed")


def slow(hook: str) -> type[Slow]:
    return type("Slow", (Slow,), {"hook": hook, "entered": asyncio.Event(), "closed": []})


async def test_f03_rollouts_in_a_slow_grade_are_cancelled_when_the_run_stops(renderer: Renderer) -> None:
    env, recorder = slow("grade"), MemoryRecorder()
    loop = make_loop(renderer, TextClient(renderer, "red"), recorder, env=env, grade_timeout_s=3600)
    running = asyncio.create_task(RolloutPool(loop, RolloutConfig(), 0).run([group(4)]))
    await env.entered.wait()
    while len(env.closed) < 4:
        await asyncio.sleep(0)
    running.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([running])
    assert running.cancelled()
    # They were finished, and are only without a grade: visible as such, and graded when the run goes on.
    assert [kept.stop_reason for kept in recorder.finished] == [StopReason.COMPLETED] * 4 and recorder.grades == []


async def test_f03_siblings_of_a_run_that_fails_are_cancelled_and_closed(renderer: Renderer) -> None:
    env, recorder = slow("step"), MemoryRecorder()
    loop = make_loop(renderer, TextClient(renderer, "red"), recorder, env=env)
    running = asyncio.create_task(RolloutPool(loop, RolloutConfig(), 0).run([group(3)]))
    await env.entered.wait()
    running.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait([running])
    assert (
        [kept.stop_reason for kept in recorder.finished]
        == [StopReason.CANCELLED] * 3
        == [StopReason.CANCELLED for _ in env.closed]
    )


@pytest.mark.parametrize("place", ["begin", "close", "finish"])
async def test_a_rollout_that_is_cancelled_again_and_again_still_has_one_ending(renderer: Renderer, place: str) -> None:
    at_place, go_on = asyncio.Event(), asyncio.Event()

    async def pause(where: str) -> None:
        if where == place:
            at_place.set()
            await go_on.wait()

    class Closing(Toy):
        async def close(self) -> None:
            await pause("close")

    class Pausing(MemoryRecorder):
        async def begin(self, trajectory: Trajectory, lease_generation: int) -> None:
            await super().begin(trajectory, lease_generation)
            await pause("begin")

        async def finish(self, trajectory: Trajectory) -> None:
            await pause("finish")
            await super().finish(trajectory)

    recorder = Pausing()
    loop = make_loop(renderer, TextClient(renderer, "red"), recorder, env=Closing)
    task = asyncio.create_task(play(loop))
    await at_place.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    ending = StopReason.CANCELLED if place == "begin" else StopReason.COMPLETED
    assert [kept.stop_reason for kept in recorder.finished] == [ending] and len(recorder.begun) == 1


async def test_f08_an_agent_that_overruns_is_graded_on_what_it_left(renderer: Renderer) -> None:
    class Patching(Toy):
        patch = b""

        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            if self.patch:
                await asyncio.sleep(3600)
            self.patch = b"good"
            return StepResult(messages=[Message(role="user", content="go on")])

        async def collect(self) -> Artifacts:
            return Artifacts(files={"patch": self.patch})

        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            return Grade(reward=float(artifacts.files["patch"] == b"good"))

    loop = make_loop(renderer, TextClient(renderer, "red"), env=Patching, episode_timeout_s=0.3)
    sample = await play(loop)
    assert sample.trajectory.stop_reason is StopReason.EPISODE_TIMEOUT and sample.reward == 1.0
    assert "limits.episode_timeout_s" in str(sample.trajectory.error)


@pytest.mark.parametrize("limit", ["episode_timeout_s", "turn_timeout_s"])
async def test_f08_an_engines_error_behind_a_timeout_stays_an_engine_error(renderer: Renderer, limit: str) -> None:
    class Failing:
        async def generate(self, ids: list[int], sampling: SamplingParams, request_id: str) -> Generation:
            async def attempt(number: int) -> Any:
                raise EngineError("HTTP 503: overloaded", EngineFault.SERVER) from OSError("the disk is full")

            return await repeat(attempt, RetryPolicy(max_tries=99, wait_s=600, max_wait_s=600), lambda error: None)

    sample = await play(make_loop(renderer, Failing(), **{limit: 0.2}))
    assert sample.trajectory.stop_reason is StopReason.ENGINE_ERROR and sample.grade is None
    for part in (f"limits.{limit}", "EngineError: HTTP 503: overloaded", "caused by OSError: the disk is full"):
        assert part in str(sample.trajectory.error)


def test_an_error_that_is_its_own_cause_has_a_text() -> None:
    error = ValueError("round and round")
    error.__cause__ = error
    assert describe("tool", error).startswith("tool raised ValueError: round and round")
