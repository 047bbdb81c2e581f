"""What another run may train on of a run's groups, told by few numbers: nothing is decoded."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Connection, Subquery, and_, case, func, select, union

from agentrl.store.records import ClaimState, GroupFacts, StepState
from agentrl.store.tables import Claims, Grades, Groups, Steps, Tasks, Trajectories, Turns
from agentrl.types import GroupState, Purpose, Sampler, StopReason

_COUNTED = [reason.value for reason in StopReason if reason.ending.in_baseline]


def group_facts(connection: Connection, run: str) -> list[GroupFacts]:
    """The groups that a run planned or trained on: by step and place in it, then those without a step by ordinal."""
    used, wanted = _used(run), _wanted(run)
    samples = _samples(wanted)
    query = (
        select(Groups.id, Groups.ordinal, Groups.purpose, Groups.state, Tasks.env, Tasks.key, used.c.step, used.c.claim)
        .add_columns(_number(samples.c.is_measured), _number(samples.c.is_from_engine))
        .join(Tasks, Tasks.identity == Groups.task)
        .outerjoin(used, used.c.group_id == Groups.id)
        .outerjoin(samples, samples.c.group_id == Groups.id)
        .where(Groups.id.in_(wanted))
        .group_by(Groups.id, Tasks.env, Tasks.key, used.c.step, used.c.claim)
    )
    records = [tuple(record) for record in connection.execute(query)]
    return [_read(record) for record in sorted(records, key=_place)]


def claimed(connection: Connection, run: str, step: int) -> list[str]:
    """The groups that a step claimed, in its order; those of an abandoned step too."""
    query = select(Claims.group_id).where(Claims.run_id == run, Claims.step_id == step).order_by(Claims.id)
    return list(connection.scalars(query))


def _wanted(run: str) -> CompoundSelect[str]:
    """Ids of the groups that the run planned or claimed."""
    return union(select(Groups.id).where(Groups.run_id == run), select(Claims.group_id).where(Claims.run_id == run))


def _used(run: str) -> Subquery:
    """(group_id, step, claim) of the groups that surviving steps of the run trained on."""
    of_step = and_(Steps.run_id == Claims.run_id, Steps.id == Claims.step_id)
    query = select(Claims.group_id, Steps.ordinal.label("step"), Claims.id.label("claim")).join(Steps, of_step)
    done = Claims.state == ClaimState.CONSUMED.value, Steps.state == StepState.RECORDED.value, ~Steps.abandoned
    return query.where(Claims.run_id == run, *done).subquery()


def _samples(groups: CompoundSelect[str]) -> Subquery:
    """(group_id, is_measured, is_from_engine) of the final attempt at each sample of `groups`."""
    order = Trajectories.reissue.desc(), Trajectories.attempt.desc()
    place = func.row_number().over(partition_by=(Trajectories.group_id, Trajectories.sample), order_by=order)
    columns = Trajectories.id, Trajectories.group_id, Trajectories.stop_reason, place.label("place")
    attempts = select(*columns).where(Trajectories.group_id.in_(groups)).subquery()
    reward = (
        select(Grades.reward).where(Grades.trajectory_id == attempts.c.id).order_by(Grades.id.desc()).limit(1)
    ).scalar_subquery()
    has_logprobs = (
        select(Turns.turn)
        .where(Turns.trajectory_id == attempts.c.id, Turns.trained, Turns.sampler == Sampler.ENGINE.value)
        .exists()
    )
    is_measured = and_(attempts.c.stop_reason.in_(_COUNTED), reward.is_not(None))
    found = is_measured.label("is_measured"), has_logprobs.label("is_from_engine")
    return select(attempts.c.group_id, *found).where(attempts.c.place == 1).subquery()


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _place(record: tuple[Any, ...]) -> tuple[bool, int, int, int]:
    """Databases differ in where they sort NULL."""
    _, ordinal, _, _, _, _, step, claim, _, _ = record
    return step is None, step or 0, claim or 0, ordinal


def _read(record: tuple[Any, ...]) -> GroupFacts:
    id, ordinal, purpose, state, env, task_key, step, _, num_measured, num_from_engine = record
    return GroupFacts(
        id=id,
        ordinal=ordinal,
        env=env,
        task_key=task_key,
        purpose=Purpose(purpose),
        state=GroupState(state),
        step=step,
        num_measured=num_measured,
        num_from_engine=num_from_engine,
    )
