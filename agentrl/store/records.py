"""What the store takes and returns besides the nouns of `agentrl.types`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from agentrl.types import CallStatus, GroupState, ParsedCall, Purpose, StopReason


class RunStatus(StrEnum):
    """A run that is killed stays `running`."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class StepState(StrEnum):
    """A step is begun before its groups are claimed, and recorded when its weights exist."""

    BEGUN = "begun"
    RECORDED = "recorded"


class ClaimState(StrEnum):
    """claimed → consumed (its step was recorded) or released (may be claimed again)."""

    CLAIMED = "claimed"
    CONSUMED = "consumed"
    RELEASED = "released"


@dataclass(kw_only=True, slots=True, frozen=True)
class Lease:
    """The right to write to a group, until the database's clock says `until` and somebody else takes it."""

    group: str
    generation: int
    """Goes up with each lease of the group; writes under an older one raise LeaseLost."""
    reissue: int
    """How often the group was leased before; goes into the trajectories that the lease begins."""
    until: float


NO_BATCH = -1


@dataclass(kw_only=True, slots=True)
class StepRow:
    """A Row that a step trained on: enough to build it again."""

    batch: int
    """NO_BATCH for a Row without weight."""
    position: int
    """Place within the batch."""
    trajectory: str
    end_turn: int
    grade_id: int | None
    """The grade that its reward came from."""
    advantage: float
    weights: list[tuple[int, int, float, str | None]] = field(default_factory=list)
    """Runs of (start, end, weight, reason) over the Row's ids; a weight of 0 has a reason (T3)."""
    ratio_mean: float | None = None
    ratio_max: float | None = None
    clip_share: float | None = None
    """Share of the Row's trained ids whose ratio was clipped, 0..1."""


@dataclass(kw_only=True, slots=True)
class StepUse:
    """A Row of a trajectory that a step used (S2)."""

    run: str
    step: int
    ordinal: int
    abandoned: bool
    row: StepRow
    version_before: int
    """The version of `run` that the step changed."""
    version_after: int | None
    """What it made of it; None: a step without signal, or one that isn't recorded yet."""
    staleness: int | None
    """How many versions lie between the oldest that sampled the trajectory and `version_before`.

    None where that one isn't an ancestor of `version_before`: a replay by weights of another line, or text without ids.
    """


@dataclass(kw_only=True, slots=True, frozen=True)
class GroupFacts:
    """What decides whether another run may train on a group, without its ids."""

    id: str
    ordinal: int
    env: str
    task_key: str
    purpose: Purpose
    state: GroupState
    step: int | None
    """Ordinal of the step that trained on it, on the surviving line of the run that was asked about."""
    num_measured: int
    """Samples with a reward, by the latest grades."""
    num_from_engine: int
    """Samples with a trained turn of an engine, i.e. with logprobs."""


@dataclass(kw_only=True, slots=True)
class RunRecord:
    """A run as stored."""

    id: str
    name: str
    status: RunStatus
    config: dict[str, Any]
    packages: dict[str, Any]
    git_commit: str | None
    seed: int
    folder: str
    started_at: float
    finished_at: float | None

    @property
    def made_with(self) -> str:
        """Its packages and their versions, for an error."""
        return ", ".join(f"{name} {version}" for name, version in self.packages.items())


@dataclass(kw_only=True, slots=True)
class VersionRecord:
    """Weights as stored; `id` is never re-used, `ordinal` is the place on the surviving line."""

    run: str
    id: int
    ordinal: int
    parent: tuple[str, int] | None
    step: int | None
    weights_hash: str
    abandoned: bool
    created_at: float


@dataclass(kw_only=True, slots=True)
class StepRecord:
    """A step as stored, without its Rows."""

    run: str
    id: int
    ordinal: int
    version_before: int
    version_after: int | None
    state: StepState
    abandoned: bool
    metrics: dict[str, Any] | None
    started_at: float
    finished_at: float | None


@dataclass(kw_only=True, slots=True)
class TrajectorySummary:
    """A trajectory without its turns, for lists."""

    id: str
    run: str
    env: str
    task_id: str
    split: str
    group: str | None
    purpose: Purpose | None
    """None: it belongs to no group."""
    sample: int
    attempt: int
    reissue: int
    stop_reason: StopReason | None
    error: str | None
    reward: float | None
    """Of the latest grade; it and `unmeasured` are None together where there is no grade."""
    unmeasured: str | None
    num_turns: int
    num_sampled: int
    started_at: float
    finished_at: float | None


class Endings(NamedTuple):
    """How many trajectories that began in a span of time ended in one way."""

    start: float
    """Unix seconds."""
    seconds: float
    stop_reason: StopReason | None
    """None: they are running."""
    num: int
    reward_mean: float | None
    """By the latest grades; None: none was measured."""


class ToolFacts(NamedTuple):
    """How the calls of one tool went."""

    name: str
    """As models called it; there may be no such tool."""
    num: int
    num_failed: int
    seconds_mean: float
    seconds_longest: float


class CallFacts(NamedTuple):
    """One tool call: where it is, and how long it took."""

    trajectory: str
    turn: int
    name: str
    status: CallStatus
    seconds: float


class Reply(NamedTuple):
    """A turn as it is read, without ids."""

    turn: int
    agent: str
    text: str
    calls: list[ParsedCall]


class LastStep(NamedTuple):
    """How far a run has come."""

    num_steps: int
    """Recorded ones on the surviving line."""
    metrics: dict[str, Any]
    """Of the last one."""


class StepFacts(NamedTuple):
    """What the trajectories were like that a step trained on."""

    num_trajectories: int
    turns_mean: float
    sampled_mean: float
    """Ids sampled in trained turns."""
    staleness: int | None
    """The most versions between the one that a group of it was planned with and the one that the step changed.

    None where all of its groups are another run's.
    """
