"""`--env`: the recorded actions in a fresh environment. What it answers now is compared with what it answered then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentrl.environment import Environment
from agentrl.errors import ReplayError
from agentrl.replay.difference import Difference, endings_differ, turns_differ
from agentrl.replay.recorded import Recorded
from agentrl.replay.samplers import RecordedChat, RecordedEnding, ReplaySampler
from agentrl.rollout.boxes import Boxes
from agentrl.rollout.chat import ChatEndpoint
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.rollout.recorder import Recorder
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ReplySampler
from agentrl.rollout.unrendered import Unrendered
from agentrl.types import Grade, StopReason, Trajectory, Turn

UNBOUNDED = 2**31
"""Tokens: the window where it ended nothing."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Outcome:
    """How an environment goes along with a recorded trajectory."""

    difference: Difference | None
    """None: it does everything as recorded."""
    is_repeated: bool = True
    """A second replay met the very same difference: the environment has changed, rather than being random."""
    num_turns: int
    """Replies that were played."""


async def check_environment(recorded: Recorded, renderer: Renderer | Unrendered) -> Outcome:
    """Play the recorded actions again; where something differs, once more. Nothing is stored.

    Raises ReplayError where the box that they were played in can't be had any more.
    """
    async with Boxes(recorded.config.sandbox, run=recorded.trajectory.run) as boxes:
        difference, num_turns = await _replay(recorded, renderer, boxes)
        if difference is None:
            return Outcome(difference=None, num_turns=num_turns)
        again, _ = await _replay(recorded, renderer, boxes)
    return Outcome(difference=difference, is_repeated=again == difference, num_turns=num_turns)


async def _replay(recorded: Recorded, renderer: Renderer | Unrendered, boxes: Boxes) -> tuple[Difference | None, int]:
    trajectory = recorded.trajectory
    sampler = ReplaySampler(trajectory, renderer.decode, RecordedEnding(trajectory))
    chat = RecordedChat(trajectory.turns)
    window = window_of(trajectory)
    loop = make_loop(
        recorded, renderer, lambda env, trajectory: sampler, Unrecorded(), chat=chat, boxes=boxes, window=window
    )
    now = (await loop.run(spec_of(recorded))).trajectory
    if now.stop_reason is StopReason.SANDBOX_ERROR is not trajectory.stop_reason:
        made_with = f"Run {recorded.run.id} was made with {recorded.run.made_with}"
        raise ReplayError(f"trajectory {trajectory.id} can't be played again: {now.error}. {made_with}")

    def found() -> Iterator[Difference]:
        yield from turns_differ(trajectory, now)
        yield from (its.difference for its in (sampler, chat) if its.difference is not None)
        yield from endings_differ(trajectory, now)

    return next(found(), None), len(now.turns_of())


def make_loop(
    recorded: Recorded,
    renderer: Renderer | Unrendered,
    sampler: Callable[[Environment, Trajectory], ReplySampler],
    recorder: Recorder,
    *,
    chat: ChatEndpoint,
    boxes: Boxes,
    window: int,
) -> AgentLoop:
    """The loop that the trajectory was played by."""
    config = recorded.config
    return AgentLoop(
        env_class=recorded.env_class,
        env_config=config.env.options,
        sampler=sampler,
        renderer=renderer,
        recorder=recorder,
        limits=config.limits,
        sampling=config.sampling,
        window=window,
        chat=chat,
        boxes=boxes,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySpec(RolloutSpec):
    """The place of a rollout that is played again: its environment has the seed that it had."""

    known_env_seed: int

    @property
    def env_seed(self) -> int:
        """As recorded."""
        return self.known_env_seed


def spec_of(recorded: Recorded) -> ReplaySpec:
    """The same task, in no group."""
    trajectory = recorded.trajectory
    return ReplaySpec(run=trajectory.run, task=trajectory.task, group=None, known_env_seed=trajectory.env_seed)


def window_of(trajectory: Trajectory) -> int:
    """The engine's window isn't stored; where it ended the episode, it was as long as the longest sequence."""
    if trajectory.stop_reason is not StopReason.CONTEXT_OVERFLOW or trajectory.renderer_mode == Unrendered.mode:
        return UNBOUNDED
    return max((len(trajectory.full(turn.index)) for turn in trajectory.turns_of()), default=0)


class Unrecorded:
    """A Recorder that stores nothing: the trajectory in memory is all that is looked at."""

    async def begin(self, trajectory: Trajectory, lease_generation: int) -> None:
        """See Recorder."""

    async def add_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """See Recorder."""

    async def update_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """See Recorder."""

    async def finish(self, trajectory: Trajectory) -> None:
        """See Recorder."""

    async def add_grade(self, trajectory: Trajectory, grade: Grade, lease_generation: int | None = None) -> int:
        """See Recorder."""
        return 0
