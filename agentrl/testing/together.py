"""The check that episodes don't disturb each other: several at once begin and end as each does alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.testing.episode import ContractError
from agentrl.testing.subject import TOLERANCE, Played, Subject, played

AT_ONCE = 8
"""Episodes that are open together, as far as `sandbox.max_boxes` allows."""
REMEDY = "keep state in the instance; where it can't be, set one_at_a_time = True and clear it in reset"


async def episodes_at_once_are_as_alone(subject: Subject) -> str:
    """What was played alone is played again at once, the first of each player twice: that is one task twice."""
    alone = _twice_the_first_of_each_player(subject.played)
    if not alone:
        raise ContractError("no episode was played to its end alone")
    is_alone = subject.stage.env_class.one_at_a_time
    limit = asyncio.Semaphore(1 if is_alone else min(AT_ONCE, subject.stage.boxes.config.max_boxes))
    again = await asyncio.gather(*(_again(subject, one, limit) for one in alone), return_exceptions=True)
    num_different = 0
    for one, other in zip(alone, again, strict=True):
        num_different += await _differs_alone_too(subject, one, other)
    how = "one at a time, as it asks for" if is_alone else "at once"
    return f"{len(alone)} {how}" + (f", {num_different} of them differ alone too" if num_different else "")


async def _again(subject: Subject, one: Played, limit: asyncio.Semaphore) -> Played:
    async with limit:
        return await played(subject.stage, one.player, one.task)


async def _differs_alone_too(subject: Subject, one: Played, other: Played | BaseException) -> bool:
    """Raises ContractError where an episode is as it was when it is alone, and otherwise among others."""
    difference = _difference(one, other)
    if difference is None:
        return False
    if _difference(one, await played(subject.stage, one.player, one.task)) is not None:
        return True
    raise ContractError(f"among other episodes, {one.task.id} of {one.task.split} {difference}; {REMEDY}")


def _difference(one: Played, other: Played | BaseException) -> str | None:
    if isinstance(other, BaseException):
        return f"failed, and alone it doesn't: {other}"
    if one.start != other.start:
        return "began with other messages than alone"
    if abs(one.reward - other.reward) > TOLERANCE:
        return f"paid {one.player.name} {other.reward:g}, and alone {one.reward:g}"
    return None


def _twice_the_first_of_each_player(episodes: Sequence[Played]) -> list[Played]:
    """Mixed, so that those of one task and of one player don't all lie together."""
    first = {one.player.name: one for one in reversed(episodes)}
    both = [*episodes, *first.values()]
    return both[::2] + both[1::2]
