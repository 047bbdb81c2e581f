"""The environment under test: its tasks, what was played, and what was found so far."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from agentrl.environment import Environment, Oracle
from agentrl.testing.episode import ContractError, Stage, grade, in_thread, play
from agentrl.types import Grade, Message, Task, Trajectory

SPLITS = ("train", "held_out")
TOLERANCE = 1e-9
"""Between two grades of one episode, and of rewards against their bounds."""


class NotShown(Exception):
    """Why a check had nothing to play, and what an author may add."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check: held, not shown, or the problem and what to do."""

    check: str
    problem: str | None = None
    note: str = ""
    """What was seen, or why there was nothing to check."""
    is_shown: bool = True
    """False: the environment lacks what the check would play."""

    def line(self) -> str:
        """As printed by `agentrl env check`."""
        if self.problem is not None:
            return f"✗ {self.check}: {self.problem}"
        if not self.is_shown:
            return f"– {self.check}: not shown, {self.note}"
        return f"✓ {self.check}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, kw_only=True)
class Player:
    """Who plays an episode, and what it may get."""

    name: str
    policy: Callable[[Environment], Oracle]
    """Of the episode's own environment."""
    lowest: float = -math.inf
    highest: float = math.inf
    bound: str = ""
    """What the class calls that bound."""
    is_hostile: bool = False
    """Its calls may be malformed; otherwise such a call is a fault of the environment's author."""

    def fits(self, reward: float) -> bool:
        """Is a reward within the bounds?"""
        return self.lowest - TOLERANCE <= reward <= self.highest + TOLERANCE

    def due(self, reward: float) -> str:
        """What is due in place of a reward that doesn't fit."""
        return (
            f"at least {self.lowest:g}" if reward < self.lowest else f"at most {self.highest:g}"
        ) + f" ({self.bound})"

    def check(self, task: Task, reward: float) -> None:
        """Raises ContractError where a reward is outside the bounds."""
        if not self.fits(reward):
            raise ContractError(
                f"task {task.id} of {task.split} paid {self.name} {reward:g} where {self.due(reward)} is due; mend the "
                f"grade, or declare another bound"
            )


@dataclass(frozen=True, kw_only=True)
class Played:
    """An episode to its end."""

    player: Player
    trajectory: Trajectory
    grade: Grade

    @property
    def task(self) -> Task:
        return self.trajectory.task

    @property
    def reward(self) -> float:
        assert self.grade.reward is not None
        return self.grade.reward

    @property
    def start(self) -> list[Message]:
        """What the player saw first."""
        turns = self.trajectory.turns_of()
        return turns[0].prompt_messages if turns else []


async def played(stage: Stage, player: Player, task: Task) -> Played:
    """Play and grade. Raises ContractError."""
    trajectory = await play(stage, task, player.policy, is_hostile=player.is_hostile)
    return Played(player=player, trajectory=trajectory, grade=await grade(stage, trajectory))


@dataclass(kw_only=True)
class Subject:
    """What the checks share."""

    stage: Stage
    name: str | None
    num_tasks: int
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    played: list[Played] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    running: str = ""
    loop: asyncio.AbstractEventLoop | None = None

    def run(self, checks: Mapping[str, Check]) -> None:
        """All checks, in order; each failure is a result."""
        asyncio.run(self._run_all(checks))
        self.loop = None

    async def _run_all(self, checks: Mapping[str, Check]) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            for label, function in checks.items():
                self.running = label
                self.results.append(await self._run_one(label, function))
        finally:
            await self.stage.boxes.close()

    async def _run_one(self, label: str, function: Check) -> Result:
        before = asyncio.all_tasks()
        try:
            note = await function(self)
            await _check_no_tasks(before)
        except NotShown as reason:
            return Result(check=label, note=str(reason), is_shown=False)
        except ContractError as error:
            return Result(check=label, problem=str(error))
        except Exception as error:  # tasks(), oracle() and whatever else is the environment's own
            return Result(check=label, problem=f"{self.stage.now} raised {type(error).__name__}: {error}")
        return Result(check=label, note=note or "")

    def answers(self) -> bool:
        """Does the event loop still turn? Asked from another thread."""
        loop, turned = self.loop, threading.Event()
        if loop is None or loop.is_closed():
            return True
        try:
            loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # it was closed in between
            return True
        return turned.wait(self.stage.timeout_s) or self.loop is not loop

    def blocked(self) -> Result:
        """What to say where the loop doesn't turn; nothing after it can run."""
        return Result(
            check=self.running,
            problem=f"{self.stage.now} has blocked the event loop for {self.stage.timeout_s:g} s, so no time limit can "
            f"end it and all other rollouts stand still; await, or use asyncio.to_thread",
        )

    async def make_tasks(self, split: str) -> list[Task]:
        """In a thread: reading a large file may take a while, and blocks nobody in a run."""
        return await in_thread("tasks", lambda: list(self.stage.env_class.tasks(self.stage.options, split)))

    def sample(self, num_tasks: int | None = None) -> list[Task]:
        """The tasks that are played, `num_tasks` of each split. Raises ContractError where there are none."""
        count = self.num_tasks if num_tasks is None else num_tasks
        chosen = [task for split in SPLITS for task in self.tasks.get(split, [])[:count]]
        if not chosen:
            raise ContractError("there are no tasks to play; see the first check")
        return chosen

    async def play(self, player: Player, task: Task) -> float:
        """Play, grade and keep an episode; the reward. Raises ContractError where it isn't what the player may get."""
        one = await played(self.stage, player, task)
        self.played.append(one)
        player.check(task, one.reward)
        return one.reward


Check = Callable[[Subject], Awaitable[str | None]]
"""What was seen. Raises ContractError, or NotShown."""


async def _check_no_tasks(before: set[asyncio.Task[object]]) -> None:
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() - before if not task.done()]
    for task in left:
        task.cancel()
    if left:
        raise ContractError(f"{len(left)} asyncio tasks still run, e.g. {left[0].get_coro()}; end them in close()")
