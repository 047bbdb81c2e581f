"""Which finished trajectories are meant, and their ids in pages: any number of them, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, select, tuple_
from sqlalchemy.orm import aliased

from agentrl.store.tables import Groups, StepRows, Tasks, Trajectories
from agentrl.types import Purpose, StopReason

PAGE = 1000
"""Ids that are read at once."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Selection:
    """All that is given must hold; nothing given: every finished trajectory."""

    ids: tuple[str, ...] = ()
    run: str | None = None
    group: str | None = None
    step: int | None = None
    """Of `run`: those that it trained on."""
    env: str | None = None
    split: str | None = None
    purpose: Purpose | None = None
    stop_reason: StopReason | None = None
    min_reward: float | None = None
    """By the latest grade; those without a measured reward have none."""
    max_reward: float | None = None
    final: bool = False
    """Only the last attempt at each sample of a group."""

    def __str__(self) -> str:
        """What is looked for."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return ", ".join(f"{name}={value}" for name, value in given if value not in (None, (), False)) or "anything"


class Selected(NamedTuple):
    """A trajectory's place among others."""

    id: str
    group: str | None
    stop_reason: str | None
    reward: float | None
    """Of the latest grade."""
    started_at: float


def page(connection: Connection, selection: Selection, after: Selected | None) -> list[Selected]:
    """The first trajectories that are selected, of those that come behind `after`."""
    own = (Trajectories.id, Trajectories.group_id, Trajectories.stop_reason)
    query = (
        select(*own, Trajectories.reward, Trajectories.started_at)
        .join(Tasks, Tasks.identity == Trajectories.task)
        .outerjoin(Groups, Groups.id == Trajectories.group_id)
        .where(Trajectories.stop_reason.is_not(None), *_conditions(selection))
        .order_by(Trajectories.started_at, Trajectories.id)
        .limit(PAGE)
    )
    if after is not None:
        query = query.where(tuple_(Trajectories.started_at, Trajectories.id) > (after.started_at, after.id))
    return [Selected._make(record) for record in connection.execute(query)]


def _conditions(selection: Selection) -> Iterator[ColumnElement[bool]]:
    equal = {
        Trajectories.run_id: selection.run,
        Trajectories.group_id: selection.group,
        Trajectories.env: selection.env,
        Tasks.split: selection.split,
        Groups.purpose: selection.purpose and selection.purpose.value,
        Trajectories.stop_reason: selection.stop_reason and selection.stop_reason.value,
    }
    yield from (column == value for column, value in equal.items() if value is not None)
    if selection.ids:
        yield Trajectories.id.in_(selection.ids)
    if selection.min_reward is not None:
        yield Trajectories.reward >= selection.min_reward
    if selection.max_reward is not None:
        yield Trajectories.reward <= selection.max_reward
    if selection.final:
        yield ~_later_attempts().exists()
    if selection.step is not None:
        of_step = (StepRows.run_id == selection.run, StepRows.step_id == selection.step)
        yield Trajectories.id.in_(select(StepRows.trajectory_id).where(*of_step))


def _later_attempts() -> Select[str]:
    later = aliased(Trajectories)
    is_later = tuple_(later.reissue, later.attempt) > tuple_(Trajectories.reissue, Trajectories.attempt)
    return select(later.id).where(
        later.group_id == Trajectories.group_id, later.sample == Trajectories.sample, is_later
    )
