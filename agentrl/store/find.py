"""Questions about what is stored: lists of runs and trajectories, steps of a trajectory, ids from prefixes.

Summaries hold clean text, for reading; whole trajectories hold the original.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select, true, tuple_
from sqlalchemy.orm import aliased

from agentrl.errors import NotStored
from agentrl.store.mentions import mentions, reasoning_of
from agentrl.store.records import RunRecord, RunStatus, StepRow, TrajectorySummary
from agentrl.store.sealing import clean_text, unseal
from agentrl.store.tables import (
    Blobs,
    EngineCalls,
    Grades,
    Groups,
    Runs,
    StepRows,
    Tasks,
    ToolCalls,
    Trajectories,
    Turns,
    table,
)
from agentrl.store.values import read_step_row
from agentrl.types import CallStatus, Purpose, StopReason
from agentrl.visible import visible

Kind = Literal["run", "group", "trajectory"]

FAILED_CALLS = [status.value for status in CallStatus if status not in (CallStatus.OK, CallStatus.NOT_RUN)]
"""What a call comes to that goes wrong."""
_EARLIER = aliased(Grades)
_LATEST_GRADE = select(func.max(_EARLIER.id)).where(_EARLIER.trajectory_id == Trajectories.id).scalar_subquery()


def runs(connection: Connection) -> list[RunRecord]:
    """All runs, the newest first."""
    query = select(table(Runs)).order_by(Runs.started_at.desc(), Runs.id)
    return [_read_run(record) for record in connection.execute(query).mappings()]


class Selection(TypedDict, total=False):
    """Which trajectories are meant: those that match all that is given. None is as good as not given."""

    run: str | None
    """The run that sampled it."""
    env: str | None
    stop_reason: StopReason | Literal["running"] | None
    purpose: Purpose | None
    min_reward: float | None
    """Of the latest grade, as `max_reward`; what wasn't measured doesn't match."""
    max_reward: float | None
    step: tuple[str, int] | None
    """(run, step) that trained on it."""
    version: int | None
    """That sampled some of its ids; ids of versions are a run's own."""
    call: CallStatus | Literal["failed"] | None
    """How a tool call of it ended; failed: in any way that is wrong."""
    text: str | None
    """Somewhere in what its models wrote, its tools gave or it was asked, in upper or lower case."""
    ids: Sequence[str] | None
    group: str | None
    split: str | None
    """Of its task."""
    final: bool | None
    """True: no later attempt at the same sample of a group."""


def find_trajectories(
    connection: Connection,
    *,
    limit: int | None = None,
    after: tuple[float, str] | None = None,
    oldest_first: bool = False,
    **which: Any,
) -> list[TrajectorySummary]:
    """Summaries of a `Selection`, the newest first: at most `limit`, from behind `after`, a (started_at, id)."""
    order = (Trajectories.started_at, Trajectories.id)
    query = _summaries().order_by(*(order if oldest_first else (one.desc() for one in order))).limit(limit)
    if after is not None:
        here, there = tuple_(*order), tuple_(*after)
        query = query.where(here > there if oldest_first else here < there)
    for name, value in which.items():
        if value is not None:
            query = query.where(_CONDITIONS[name](value))
    return [_read_summary(record) for record in connection.execute(query).mappings()]


def rows_of(connection: Connection, run: str, step: int) -> list[StepRow]:
    """The Rows of a step in the order (batch, position)."""
    query = select(table(StepRows)).where(StepRows.run_id == run, StepRows.step_id == step)
    query = query.order_by(StepRows.batch, StepRows.position)
    return [read_step_row(record) for record in connection.execute(query).mappings()]


def resolve(connection: Connection, kind: Kind, prefix: str) -> str:
    """The one id that starts with `prefix`. Raises NotStored with the candidates where none or several do."""
    column = {"run": Runs.id, "group": Groups.id, "trajectory": Trajectories.id}[kind]
    prefix = visible(prefix)  # what isn't printable is in no id, and not every database takes it
    if connection.scalar(select(column).where(column == prefix)) is not None:
        return prefix
    query = select(column).where(column.startswith(prefix, autoescape=True)).order_by(column)
    matches = [id for id in connection.scalars(query.limit(_SHOWN * 100)) if id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise NotStored(f"{prefix!r} is the start of {len(matches)} {kind} ids: {_listed(matches)}")
    known = list(connection.scalars(select(column).order_by(column).limit(_COMPARED)))
    near = get_close_matches(prefix, known, n=_SHOWN, cutoff=0.4) or known
    raise NotStored(f"no {kind} id starts with {prefix!r}; near: {_listed(near) if near else 'there are none'}")


_SHOWN = 8
"""Ids in a message."""
_COMPARED = 2000
"""Ids that are compared for likeness."""


def _listed(ids: list[str]) -> str:
    return ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")


def _ended_as(stop_reason: StopReason | Literal["running"]) -> ColumnElement[bool]:
    if stop_reason == "running":
        return Trajectories.stop_reason.is_(None)
    return Trajectories.stop_reason == stop_reason.value


def _trained_by(step: tuple[str, int]) -> ColumnElement[bool]:
    rows = select(StepRows.trajectory_id).where(StepRows.run_id == step[0], StepRows.step_id == step[1])
    return Trajectories.id.in_(rows)


def _sampled_by(version: int) -> ColumnElement[bool]:
    calls = select(EngineCalls.turn).where(EngineCalls.trajectory_id == Trajectories.id, EngineCalls.version == version)
    return calls.exists()


def _has_call(status: CallStatus | Literal["failed"]) -> ColumnElement[bool]:
    wanted = FAILED_CALLS if status == "failed" else [status.value]
    calls = select(ToolCalls.turn).where(ToolCalls.trajectory_id == Trajectories.id, ToolCalls.status.in_(wanted))
    return calls.exists()


def _later_attempt() -> Select[str]:
    later = aliased(Trajectories)
    same = (later.group_id == Trajectories.group_id, later.sample == Trajectories.sample)
    order = tuple_(later.reissue, later.attempt) > tuple_(Trajectories.reissue, Trajectories.attempt)
    return select(later.id).where(*same, order)


def _says(text: str) -> ColumnElement[bool]:
    needle = clean_text(text)
    shared = select(Blobs.hash).where(Blobs.hash == Turns.prompt_messages_hash, mentions(Blobs.content, needle))
    in_turn = or_(
        mentions(Turns.text, needle),
        mentions(Turns.prompt_messages, needle),
        mentions(reasoning_of(Turns.message), needle),
        and_(Turns.prompt_messages_hash.is_not(None), shared.exists()),
    )
    in_call = or_(mentions(ToolCalls.result, needle), mentions(ToolCalls.raw_arguments, needle))
    turns = select(Turns.turn).where(Turns.trajectory_id == Trajectories.id, in_turn)
    calls = select(ToolCalls.turn).where(ToolCalls.trajectory_id == Trajectories.id, in_call)
    return or_(turns.exists(), calls.exists())


_CONDITIONS: dict[str, Callable[[Any], ColumnElement[bool]]] = {
    "run": lambda run: Trajectories.run_id == run,
    "env": lambda env: Trajectories.env == clean_text(env),
    "stop_reason": _ended_as,
    "purpose": lambda purpose: Groups.purpose == purpose.value,
    "min_reward": lambda reward: Trajectories.reward >= reward,
    "max_reward": lambda reward: Trajectories.reward <= reward,
    "step": _trained_by,
    "version": _sampled_by,
    "call": _has_call,
    "text": _says,
    "ids": Trajectories.id.in_,
    "group": lambda group: Trajectories.group_id == group,
    "split": lambda split: Tasks.split == split,
    "final": lambda wanted: ~_later_attempt().exists() if wanted else true(),
}
"""Of each key of a `Selection`."""


def _summaries() -> Select[Any]:
    columns = table(Trajectories).c
    own = [columns[name] for name in _OWN]
    return (
        select(
            *own,
            Trajectories.run_id,
            Trajectories.group_id,
            Trajectories.stop_reason,
            Tasks.env,
            Tasks.id.label("task_id"),
            Tasks.split,
            Groups.purpose,
            Grades.reward,
            Grades.unmeasured,
        )
        .outerjoin(Tasks, Tasks.identity == Trajectories.task)  # outer, so that it is looked up last
        .outerjoin(Groups, Groups.id == Trajectories.group_id)
        .outerjoin(Grades, Grades.id == _LATEST_GRADE)
    )


_OWN = ("id", "sample", "attempt", "reissue", "error", "num_turns", "num_sampled", "started_at", "finished_at")


def _read_summary(record: Any) -> TrajectorySummary:
    purpose, stop_reason = record["purpose"], record["stop_reason"]
    names = (*_OWN, "env", "task_id", "split", "reward", "unmeasured")
    return TrajectorySummary(
        run=record["run_id"],
        group=record["group_id"],
        purpose=None if purpose is None else Purpose(purpose),
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        **{name: record[name] for name in names},
    )


def _read_run(record: Any) -> RunRecord:
    values = unseal(record)
    return RunRecord(**values | {"status": RunStatus(values["status"])})
