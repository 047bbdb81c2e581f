"""Which tasks of an environment can be trusted: nothing is paid for no work, and the oracle is paid each time.

What is wrong with a task stands in `Verdict.reason`. What is wrong with the machine (no box, no answer from a chat
endpoint) says nothing of the task: such an episode is played again, and then the task is unmeasured.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from agentrl.errors import EngineError, SandboxError
from agentrl.testing.boxes import NoBox
from agentrl.testing.episode import ContractError, Stage
from agentrl.testing.players import silence, solver
from agentrl.testing.subject import Played, Player, played
from agentrl.types import Task

MAX_TRIES = 3
"""Of an episode that the machine spoils."""
MAX_OUTPUT_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found of a task."""

    task: Task
    reason: str | None = None
    """Why it can't be trusted; None: nothing is wrong with it."""
    unmeasured: str | None = None
    """Why it isn't known."""
    has_oracle: bool = True


class _Unmeasured(Exception):
    """The machine's fault, not the task's."""


async def validate(stage: Stage, tasks: Sequence[Task], *, repeat: int, at_once: int) -> AsyncIterator[Verdict]:
    """The verdicts as they come; `at_once` tasks are played together, one where the environment asks for that.

    Closes the stage's boxes.
    """
    limit = asyncio.Semaphore(1 if stage.env_class.one_at_a_time else at_once)
    running = [asyncio.ensure_future(_limited(limit, stage, task, repeat)) for task in tasks]
    try:
        for verdict in asyncio.as_completed(running):
            yield await verdict
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await stage.boxes.close()


async def _limited(limit: asyncio.Semaphore, stage: Stage, task: Task, repeat: int) -> Verdict:
    async with limit:
        try:
            return await _verdict(stage, task, repeat)
        except _Unmeasured as error:
            return Verdict(task=task, unmeasured=str(error))


async def _verdict(stage: Stage, task: Task, repeat: int) -> Verdict:
    reason = await _fault(stage, silence(stage.env_class), task)
    if reason is not None:
        return Verdict(task=task, reason=reason)
    try:
        has_oracle = stage.env_class(stage.options).oracle(task) is not None
    except Exception as error:
        return Verdict(task=task, reason=f"oracle raised {type(error).__name__}: {error}")
    reason = await _oracle_fault(stage, task, repeat) if has_oracle else None
    return Verdict(task=task, reason=reason, has_oracle=has_oracle)


async def _oracle_fault(stage: Stage, task: Task, repeat: int) -> str | None:
    faults = [await _fault(stage, solver(stage.env_class, task), task) for _ in range(repeat)]
    reasons = [fault for fault in faults if fault is not None]
    if not reasons:
        return None
    return reasons[0] if len(reasons) == repeat else f"flaky, wrong {len(reasons)} of {repeat} times: {reasons[0]}"


async def _fault(stage: Stage, player: Player, task: Task) -> str | None:
    """What is wrong with one episode; None: nothing. Raises _Unmeasured."""
    for tries_left in reversed(range(MAX_TRIES)):
        try:
            one = await played(stage, player, task)
        except ContractError as error:
            if not _is_of_the_machine(error):
                return f"{player.name}: {error}"
            if tries_left == 0:
                raise _Unmeasured(f"{error}") from error
        else:
            return _unfit(one)
    raise AssertionError("the last try ends in one of the ways above")


def _unfit(one: Played) -> str | None:
    player, reward = one.player, one.reward
    if player.fits(reward):
        return None
    lines = [line for line in (one.grade.output or "").splitlines() if line.strip()]
    said = f"; the grader says: {lines[-1].strip()[:MAX_OUTPUT_CHARACTERS]}" if lines else ""
    return f"{player.name} is paid {reward:g} where {player.due(reward)} is due{said}"


def _is_of_the_machine(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, NoBox | SandboxError | EngineError):
            return True
        error = error.__cause__
    return False
