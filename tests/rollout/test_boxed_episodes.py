"""Episodes with a box: whose time the wait is, what a fault of the box means, and what is left when they are graded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.config import RolloutConfig
from agentrl.environment import EnvironmentConfig, EnvironmentContext, StepResult
from agentrl.errors import FaultShareError, SandboxError
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.faulty_sandbox import FaultySandboxes
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy, repeat, submit
from agentrl.tool import ToolContext, ToolResult, tool
from agentrl.types import Artifacts, Grade, Group, Message, Purpose, Sample, StopReason, Task, Trajectory
from tests.rollout.faulty_boxes import open_boxes, register
from tests.rollout.loops import TextClient, call, make_loop, play


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, monkeypatch)


@tool
async def look(path: str, ctx: ToolContext) -> str:
    """Is the box there?"""
    assert ctx.sandbox is not None
    if not await ctx.sandbox.is_alive():
        raise SandboxError("the box is gone")
    return "it lives"


class Boxed(Toy):
    """Plays in a box and is graded in another."""

    tools = (look, repeat, submit)
    image: str | None = None
    grading_image: str | None = None
    seen: ClassVar[list[tuple[str, Sandbox | None, bool]]] = []
    """(hook, its box, whether the box lives then)."""

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        self.box: Sandbox | None = None

    def sandbox(self, task: Task) -> SandboxSpec | None:
        image = self.image if task.id.endswith("-0") else None
        return SandboxSpec(image=image)

    @classmethod
    def grading_sandbox(cls, task: Task) -> SandboxSpec | None:
        return SandboxSpec(image=cls.grading_image)

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.box = ctx.sandbox
        await self._see("reset")
        return task.messages

    async def collect(self) -> Artifacts:
        await self._see("collect")
        return Artifacts()

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        assert ctx.sandbox is not None
        cls.seen.append(("grade", ctx.sandbox, await ctx.sandbox.is_alive()))
        return await super().grade(task, trajectory, artifacts, ctx)

    async def _see(self, hook: str) -> None:
        assert self.box is not None
        self.seen.append((hook, self.box, await self.box.is_alive()))


def boxed(**attributes: Any) -> type[Boxed]:
    return type("Boxed", (Boxed,), {"seen": [], **attributes})


async def test_an_episode_has_its_box_and_its_grade_a_fresh_one(renderer: Renderer) -> None:
    """G04: the agent's box is gone when grading begins."""
    env = boxed()
    async with open_boxes() as (boxes, backend):
        loop = make_loop(renderer, TextClient(renderer, call("look", '{"path": "/"}'), "red"), env=env, boxes=boxes)
        sample = await play(loop)
        assert sample.reward == 1.0 and sample.trajectory.turns[0].tool_calls[0].result == "it lives"
        assert [(hook, lives) for hook, _, lives in env.seen] == [("reset", True), ("collect", True), ("grade", True)]
        boxes_seen = [box for _, box, _ in env.seen]
        assert boxes_seen[0] is boxes_seen[1] is not boxes_seen[2]
        assert len(backend.boxes) == 2 and all(box.is_stopped for box in backend.boxes)


class StoppedFirst(Boxed):
    """Notes at grading how many boxes live: its own alone, though every sibling has played."""

    backend: ClassVar[FaultySandboxes]

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        return Grade(reward=float(cls.backend.num_living == 1))


async def test_g04_the_box_is_stopped_before_the_grade_begins(renderer: Renderer) -> None:
    """G04."""
    async with open_boxes({"stop_s": 0.1}) as (boxes, backend):
        StoppedFirst.backend = backend
        sample = await play(make_loop(renderer, TextClient(renderer, "red"), env=StoppedFirst, boxes=boxes))
        assert sample.reward == 1.0


async def test_waiting_for_a_box_is_not_the_episode_s_time(renderer: Renderer) -> None:
    async with open_boxes({"start_s": 0.2}, max_boxes=1) as (boxes, _):
        limits = {"episode_timeout_s": 0.5, "grade_timeout_s": 0.5}
        loop = make_loop(renderer, TextClient(renderer, "red"), env=boxed(), boxes=boxes, **limits)
        samples = await asyncio.gather(*(play(loop) for _ in range(5)))  # the last one waits for ten starts
        assert [sample.reward for sample in samples] == [1.0] * 5


@pytest.mark.parametrize("hook", ["reset", "step", "collect", "tool"])
async def test_a_box_that_is_gone_is_a_fault_and_never_the_agent_s(renderer: Renderer, hook: str) -> None:
    """R2: sandbox_error, unmeasured, wherever it is noticed; nobody else is touched."""

    class Gone(Boxed):
        async def _see(self, name: str) -> None:
            if name == hook:
                raise SandboxError(f"it died before {hook}")

        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            await self._see("step")
            return await super().step(reply, results)

    @tool
    async def look(path: str) -> str:
        """Raise."""
        raise SandboxError("it died before tool")

    env = type("Gone", (Gone,), {"seen": [], "tools": (look, submit)}) if hook == "tool" else Gone
    async with open_boxes() as (boxes, backend):
        client = TextClient(renderer, call("look", '{"path": "/"}'), "red")
        sample = await play(make_loop(renderer, client, env=env, boxes=boxes))
        assert sample.trajectory.stop_reason is StopReason.SANDBOX_ERROR and sample.grade is None
        assert f"it died before {hook}" in str(sample.trajectory.error)
        assert all(box.is_stopped for box in backend.boxes)


async def test_a_grader_whose_box_breaks_gets_another_one(renderer: Renderer) -> None:
    """R3, R2: once more in a fresh box; then the grade is unmeasured and says why."""

    class Breaks(Boxed):
        num_breaks: ClassVar[int] = 1
        boxes_of_grades: ClassVar[list[Sandbox | None]] = []

        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            cls.boxes_of_grades.append(ctx.sandbox)
            if len(cls.boxes_of_grades) <= cls.num_breaks:
                raise SandboxError("the grader's box died")
            return Grade(reward=1.0)

    async with open_boxes() as (boxes, _):
        loop = make_loop(renderer, TextClient(renderer, "red"), env=Breaks, boxes=boxes)
        assert (await play(loop)).reward == 1.0 and len(set(Breaks.boxes_of_grades)) == 2
        Breaks.num_breaks = 100
        grade = (await play(loop)).grade
        assert grade is not None and grade.reward is None
        assert grade.unmeasured == "no box to grade in: SandboxError: the grader's box died"


async def test_g11_the_run_goes_on_without_the_task_whose_image_is_missing(renderer: Renderer) -> None:
    """G11: its rollouts are outside of the mean, its siblings are played, a share above the threshold stops."""
    env = boxed(image="gone:1")
    async with open_boxes({"missing_images": ["gone:1"]}) as (boxes, _):
        loop = make_loop(renderer, TextClient(renderer, *["red"] * 100), MemoryRecorder(), env=env, boxes=boxes)
        groups = [_group(env, n) for n in (0, 4, 4, 4)]
        played = await RolloutPool(loop, RolloutConfig(max_fault_share=0.3), 0).run(groups)
        assert _endings(played[0].samples) == {"sandbox_error"} and _endings(played[1].samples) == {"completed"}
        assert all(sample.reward is None for sample in played[0].samples)
        with pytest.raises(BaseExceptionGroup) as caught:
            await RolloutPool(loop, RolloutConfig(max_fault_share=0.2), 0).run([_group(env, n) for n in (0, 4, 4, 4)])
        stops = caught.value
        while isinstance(stops, BaseExceptionGroup):
            stops = stops.exceptions[0]  # type: ignore[assignment]
        assert isinstance(stops, FaultShareError) and "gone:1 isn't there: pull it" in str(stops)


async def test_grades_without_a_box_count_as_faults(renderer: Renderer) -> None:
    """Rollouts that nobody can grade cost as much, and teach as little, as those that a fault ended."""
    env = boxed(grading_image="gone:2")
    async with open_boxes({"missing_images": ["gone:2"]}) as (boxes, _):
        loop = make_loop(renderer, TextClient(renderer, *["red"] * 100), MemoryRecorder(), env=env, boxes=boxes)
        (played,) = await RolloutPool(loop, RolloutConfig(max_fault_share=1), 0).run([_group(env, 0)])
        assert all(sample.reward is None for sample in played.samples)
        with pytest.raises(BaseExceptionGroup) as caught:
            await RolloutPool(loop, RolloutConfig(max_fault_share=0.5), 0).run([_group(env, 1)])
        stops = caught.value
        while isinstance(stops, BaseExceptionGroup):
            stops = stops.exceptions[0]  # type: ignore[assignment]
        assert isinstance(stops, FaultShareError) and "(no box to grade in 3)" in str(stops) and "gone:2" in str(stops)


async def test_a_missing_image_for_grading_leaves_the_grade_unmeasured(renderer: Renderer) -> None:
    env = boxed(grading_image="gone:2")
    async with open_boxes({"missing_images": ["gone:2"]}) as (boxes, _):
        grade = (await play(make_loop(renderer, TextClient(renderer, "red"), env=env, boxes=boxes))).grade
        assert grade is not None and grade.reward is None and "gone:2" in str(grade.unmeasured)


async def test_a_rollout_that_is_cancelled_gives_its_box_back(renderer: Renderer) -> None:
    class Slow(Boxed):
        async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
            await asyncio.sleep(60)
            raise AssertionError

    async with open_boxes() as (boxes, backend):
        loop = make_loop(renderer, TextClient(renderer, "red"), env=Slow, boxes=boxes)
        task = asyncio.create_task(play(loop))
        while not backend.num_living:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert backend.num_living == 0 and boxes.room.num_boxes == 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [("a box", "environment.sandbox returned str, not a SandboxSpec"), (RuntimeError("boom"), "RuntimeError: boom")],
)
async def test_a_wrong_request_for_a_box_is_the_environment_s_fault(
    renderer: Renderer, answer: Any, error: str
) -> None:
    class Wrong(Toy):
        def sandbox(self, task: Task) -> SandboxSpec | None:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

    sample = await play(make_loop(renderer, TextClient(renderer, "red"), env=Wrong))
    assert sample.trajectory.stop_reason is StopReason.ENV_ERROR and error in str(sample.trajectory.error)


async def test_an_agent_loop_without_boxes_says_so(renderer: Renderer) -> None:
    sample = await play(make_loop(renderer, TextClient(renderer, "red"), env=Boxed))
    assert sample.trajectory.stop_reason is StopReason.SANDBOX_ERROR
    assert "pass boxes=Boxes(…)" in str(sample.trajectory.error)


@tool
async def shell(command: str, ctx: ToolContext) -> str:
    """Run a command."""
    assert ctx.sandbox is not None
    return (await (await ctx.sandbox.session()).run(command, timeout_s=600)).text


async def test_g04_f07_a_runaway_command_holds_the_episode_for_a_grace_only(renderer: Renderer) -> None:
    """G04, F07: the deadline is the only limit that fires, what there is then is collected and graded."""

    class Runaway(Boxed):
        tools = (shell, submit)

        async def collect(self) -> Artifacts:
            assert self.box is not None
            done = await self.box.exec("pgrep -f [s]leep.98765 || echo none", timeout_s=20)
            return Artifacts(data={"running": done.text, "log": (await self.box.read("log")).decode()})

    async with open_boxes() as (boxes, _):
        command = call("shell", '{"command": "echo begun > log; sleep 98765 & while :; do :; done"}')
        limits = {"episode_timeout_s": 1.5, "tool_timeout_s": 500.0}
        loop = make_loop(renderer, TextClient(renderer, command, "red"), env=Runaway, boxes=boxes, **limits)
        started = time.monotonic()
        sample = await play(loop)
        assert time.monotonic() - started < 30
        assert sample.trajectory.stop_reason is StopReason.EPISODE_TIMEOUT and sample.grade is not None
        assert "limits.episode_timeout_s" in str(sample.trajectory.error)
        assert sample.trajectory.artifacts.data == {"running": "none\n", "log": "begun\n"}


async def test_a_box_that_dies_in_mid_command_is_tried_again_in_another(renderer: Renderer) -> None:
    """R2, R3: the attempt is unmeasured, the next one has a box of its own; siblings aren't touched."""

    class InShell(Boxed):
        tools = (shell, submit)

    async with open_boxes({"dies_in_command": 0}) as (boxes, backend):
        command = call("shell", '{"command": "sleep 30"}')
        loop = make_loop(renderer, TextClient(renderer, *[command] * 10), env=InShell, boxes=boxes)
        group = _group(boxed(), 4)
        group.size = 1
        (played,) = await RolloutPool(loop, RolloutConfig(max_attempts=2, max_fault_share=1), 0).run([group])
        (sample,) = played.samples
        assert sample.trajectory.stop_reason is StopReason.SANDBOX_ERROR and sample.trajectory.attempt == 1
        assert "is gone, by plan" in str(sample.trajectory.error) and len(backend.boxes) == 2


def _group(env: type[Boxed], number: int) -> Group:
    tasks = {task.id: task for task in env.tasks(env.Config(num_tasks=8), "train")}
    task = tasks[f"train-{number}"]
    return Group(id=f"g{number}", run="run", task=task, purpose=Purpose.TRAIN, ordinal=number, size=4)


def _endings(samples: Sequence[Sample]) -> set[str]:
    return {str(sample.trajectory.stop_reason) for sample in samples}
