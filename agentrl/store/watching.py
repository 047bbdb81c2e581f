"""What is asked again and again of a run that is looked at: few numbers, by indexes; nothing is decoded.

All functions read within the caller's transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, case, func, literal, select
from sqlalchemy.orm import aliased

from agentrl.errors import NotStored
from agentrl.store.damage import damage_named
from agentrl.store.database import whole
from agentrl.store.find import FAILED_CALLS, find_trajectories
from agentrl.store.records import CallFacts, Endings, LastStep, Reply, StepFacts, ToolFacts, TrajectorySummary
from agentrl.store.sealing import unseal
from agentrl.store.tables import (
    Claims,
    Grades,
    Groups,
    Runs,
    StepRows,
    Steps,
    ToolCalls,
    Trajectories,
    Turns,
    Versions,
    table,
)
from agentrl.store.values import read_tool_call
from agentrl.types import CallStatus, GroupState, StopReason

RECENT = 300
"""Trajectories whose changes are noticed: older ones have ended."""


def endings(connection: Connection, run: str | None, num_spans: int) -> list[Endings]:
    """How the trajectories of a run, or of all runs, ended, by `num_spans` equal spans of the time they began in."""
    which = () if run is None else (Trajectories.run_id == run,)
    bounds = select(func.min(Trajectories.started_at), func.max(Trajectories.started_at)).where(*which)
    first, last = connection.execute(bounds).one()
    if first is None:
        return []
    seconds = max((last - first) / num_spans * (1 + 1e-9), 1e-3)  # the last one is in the last span
    span = whole((Trajectories.started_at - first) / seconds).label("span")
    query = select(span, Trajectories.stop_reason, func.count(), func.avg(Trajectories.reward)).where(*which)
    return [
        Endings(first + place * seconds, seconds, None if reason is None else StopReason(reason), num, reward)
        for place, reason, num, reward in connection.execute(query.group_by("span", "stop_reason").order_by("span"))
    ]


def slow_tools(connection: Connection, run: str | None, num_recent: int, limit: int) -> list[ToolFacts]:
    """The tools whose calls took longest on average, in the newest trajectories of a run, or of all runs."""
    failed = func.sum(case((ToolCalls.status.in_(FAILED_CALLS), 1), else_=0))
    mean = func.avg(ToolCalls.seconds)
    query = select(ToolCalls.name, func.count(), failed, mean, func.max(ToolCalls.seconds))
    query = query.where(ToolCalls.trajectory_id.in_(_newest(run, num_recent))).group_by(ToolCalls.name)
    return [ToolFacts(*record) for record in connection.execute(query.order_by(mean.desc(), "name").limit(limit))]


def slow_calls(connection: Connection, run: str | None, num_recent: int, limit: int) -> list[CallFacts]:
    """The tool calls that took longest in those trajectories."""
    columns = ToolCalls.trajectory_id, ToolCalls.turn, ToolCalls.name, ToolCalls.status, ToolCalls.seconds
    query = select(*columns).where(ToolCalls.trajectory_id.in_(_newest(run, num_recent)))
    query = query.order_by(ToolCalls.seconds.desc(), *columns[:2]).limit(limit)
    return [
        CallFacts(id, turn, name, CallStatus(status), seconds)
        for id, turn, name, status, seconds in connection.execute(query)
    ]


def longest(connection: Connection, run: str | None, num_recent: int, limit: int) -> list[TrajectorySummary]:
    """Those of the trajectories that took longest, of the ended ones, the longest first."""
    seconds = Trajectories.finished_at - Trajectories.started_at
    query = select(Trajectories.id).where(Trajectories.id.in_(_newest(run, num_recent)), seconds.is_not(None))
    ids = list(connection.scalars(query.order_by(seconds.desc(), Trajectories.id).limit(limit)))
    return sorted(find_trajectories(connection, ids=ids), key=lambda one: ids.index(one.id))


def replies(connection: Connection, trajectories: Sequence[str], start: int | None, num: int) -> dict[str, list[Reply]]:
    """By trajectory, `num` turns from `start` on; None: its last ones. Texts only, so long ones are quick to show."""
    first = Trajectories.num_turns - num if start is None else literal(start)
    query = select(Turns.trajectory_id, Turns.turn, Turns.agent, Turns.text)
    query = query.join(Trajectories, Trajectories.id == Turns.trajectory_id).where(
        Turns.trajectory_id.in_(trajectories), Turns.turn >= first, Turns.turn < first + num
    )
    found: dict[str, list[Reply]] = {id: [] for id in trajectories}
    by_turn = {}
    for id, turn, agent, text in connection.execute(query.order_by(Turns.trajectory_id, Turns.turn)):
        by_turn[id, turn] = Reply(turn, agent, text, [])
        found[id].append(by_turn[id, turn])
    calls = select(table(ToolCalls)).join(Trajectories, Trajectories.id == ToolCalls.trajectory_id)
    calls = calls.where(
        ToolCalls.trajectory_id.in_(trajectories), ToolCalls.turn >= first, ToolCalls.turn < first + num
    )
    with damage_named(connection, trajectories):
        for record in connection.execute(calls.order_by(*table(ToolCalls).primary_key.columns)).mappings():
            by_turn[record["trajectory_id"], record["turn"]].calls.append(read_tool_call(record))
    return found


def last_steps(connection: Connection) -> dict[str, LastStep]:
    """By run, how many recorded steps are on its surviving line, and the last one's metrics."""
    done = Steps.metrics.is_not(None), ~Steps.abandoned
    counted = select(Steps.run_id, func.count().label("num"), func.max(Steps.id).label("last"))
    last = counted.where(*done).group_by(Steps.run_id).subquery()
    query = select(table(Steps), last.c.num).join(last, and_(Steps.run_id == last.c.run_id, Steps.id == last.c.last))
    records = connection.execute(query).mappings()
    return {record["run_id"]: LastStep(record["num"], unseal(record)["metrics"]) for record in records}


def step_facts(connection: Connection, run: str) -> dict[int, StepFacts]:
    """Of each step of a run that has Rows: how long its trajectories were, and how old their weights."""
    used = select(StepRows.step_id, StepRows.trajectory_id).where(StepRows.run_id == run).distinct().subquery()
    query = (
        select(used.c.step_id, func.count(), func.avg(Trajectories.num_turns), func.avg(Trajectories.num_sampled))
        .join(Trajectories, Trajectories.id == used.c.trajectory_id)
        .group_by(used.c.step_id)
    )
    ages = _ages(connection, run)
    return {
        step: StepFacts(num, float(turns), float(sampled), ages.get(step))
        for step, num, turns, sampled in connection.execute(query)
    }


def group_states(connection: Connection, run: str) -> dict[str, int]:
    """How many groups that a run planned are in each state."""
    query = select(Groups.state, func.count()).where(Groups.run_id == run).group_by(Groups.state)
    counts = {state: num for state, num in connection.execute(query)}
    return {state.value: counts[state.value] for state in GroupState if state.value in counts}


def run_mark(connection: Connection, run: str) -> str:
    """A text that is another one once something of the run has changed. Raises NotStored."""
    own = select(Runs.status, Runs.finished_at).where(Runs.id == run)
    steps = select(func.count(), func.count(Steps.finished_at)).where(Steps.run_id == run)
    recent = select(Trajectories.id, Trajectories.stop_reason, Trajectories.reward).where(Trajectories.run_id == run)
    recent = recent.order_by(Trajectories.started_at.desc(), Trajectories.id.desc()).limit(RECENT)
    found = connection.execute(own).one_or_none()
    if found is None:
        raise NotStored(f"no run {run!r} in the store")
    return _mark([found, *connection.execute(steps), *connection.execute(recent)])


def runs_mark(connection: Connection) -> str:
    """The same of the list of runs."""
    num_steps = select(func.count(Steps.finished_at)).where(Steps.run_id == Runs.id).scalar_subquery()
    return _mark(connection.execute(select(Runs.id, Runs.status, num_steps).order_by(Runs.id)))


def trajectory_mark(connection: Connection, trajectory: str) -> str:
    """The same of a trajectory. Raises NotStored."""
    own = select(Trajectories.num_turns, Trajectories.stop_reason, Trajectories.reward)
    found = connection.execute(own.where(Trajectories.id == trajectory)).one_or_none()
    if found is None:
        raise NotStored(f"no trajectory {trajectory!r} in the store")
    calls = select(ToolCalls.turn, ToolCalls.status).where(ToolCalls.trajectory_id == trajectory)
    calls = calls.where(ToolCalls.turn >= found.num_turns - 1)
    grades = select(func.count()).select_from(Grades).where(Grades.trajectory_id == trajectory)
    rows = select(func.count()).select_from(StepRows).where(StepRows.trajectory_id == trajectory)
    return _mark([found, *(record for query in (calls, grades, rows) for record in connection.execute(query))])


def _newest(run: str | None, num: int) -> Select[str]:
    """Ids of the newest trajectories of a run, or of all runs."""
    query = select(Trajectories.id).where(*(() if run is None else (Trajectories.run_id == run,)))
    newest = query.order_by(Trajectories.started_at.desc(), Trajectories.id.desc()).limit(num).subquery()
    return select(newest.c.id)


def _ages(connection: Connection, run: str) -> dict[int, int]:
    """By step, the most versions between the one that a group of it was planned with and the one it changed."""
    before, planned = aliased(Versions), aliased(Versions)
    query = (
        select(Claims.step_id, func.max(before.ordinal - planned.ordinal))
        .join(Groups, and_(Groups.id == Claims.group_id, Groups.run_id == run))
        .join(Steps, and_(Steps.run_id == run, Steps.id == Claims.step_id))
        .join(before, and_(before.run_id == run, before.id == Steps.version_before))
        .join(planned, and_(planned.run_id == run, planned.id == Groups.version))
        .where(Claims.run_id == run)
        .group_by(Claims.step_id)
    )
    return {step: age for step, age in connection.execute(query)}


def _mark(records: Iterable[Any]) -> str:
    hash = hashlib.blake2b(digest_size=8)
    for record in records:
        hash.update(repr(tuple(record)).encode("utf-8", "surrogatepass"))
    return hash.hexdigest()
