"""The data model in SQL. Read it with plain SQL: text is in text columns, times are Unix seconds.

Token arrays are blobs (see `codec`). `raw` keeps the originals of values that SQL can't hold (see `sealing`). What
repeats is kept once: first prompts and files in `blobs`, a reply's text in `turns.text`, a tool's result in
`tool_calls.result`. Ids of versions and steps count up within a run and are never re-used.

    select turn, text, reward from turns where trajectory_id = '…' order by turn;
    select stop_reason, count(*) from trajectories group by stop_reason;
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_NAMES = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}

TURN_KEY = ["turns.trajectory_id", "turns.turn"]
VERSION_KEY = ["versions.run_id", "versions.id"]
STEP_KEY = ["steps.run_id", "steps.id"]


def _reference(table_name: str, column: str) -> Index:
    """Finds the records that refer to a blob, of the few that do."""
    is_set = text(f"{column} IS NOT NULL")
    return Index(f"ix_{table_name}_{column}", column, sqlite_where=is_set, postgresql_where=is_set)


class Base(DeclarativeBase):
    """All tables; constraints have names, so that later migrations can change them."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        str: Text(),
        float: Double(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
    }


class Sealed:
    """A table whose records are written by `sealing.seal`."""

    raw: Mapped[bytes | None] = mapped_column(sort_order=99)


class Runs(Sealed, Base):
    """One run of a command that rolls out or trains."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    status: Mapped[str]
    config: Mapped[dict[str, Any]]
    packages: Mapped[dict[str, Any]]
    """Versions of the installed packages that matter."""
    git_commit: Mapped[str | None]
    seed: Mapped[int] = mapped_column(BigInteger)
    folder: Mapped[str]
    started_at: Mapped[float]
    finished_at: Mapped[float | None]


class Versions(Base):
    """Weights. 0 is what the run started from; a parent may belong to another run."""

    __tablename__ = "versions"
    __table_args__ = (ForeignKeyConstraint(["parent_run_id", "parent_version"], VERSION_KEY),)

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    ordinal: Mapped[int]
    """Place on the surviving line; unlike the id it comes again after a crash."""
    parent_run_id: Mapped[str | None]
    parent_version: Mapped[int | None]
    step_id: Mapped[int | None]
    """The step of this run that made it. No foreign key: steps refer to versions, and a cycle can't be created."""
    weights_hash: Mapped[str]
    abandoned: Mapped[bool]
    created_at: Mapped[float]


class Steps(Sealed, Base):
    """One step of the trainer: state begun, then recorded."""

    __tablename__ = "steps"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "version_before"], VERSION_KEY),
        ForeignKeyConstraint(["run_id", "version_after"], VERSION_KEY),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    ordinal: Mapped[int]
    version_before: Mapped[int]
    version_after: Mapped[int | None]
    """NULL: not recorded yet, or a step without signal."""
    state: Mapped[str]
    abandoned: Mapped[bool]
    metrics: Mapped[dict[str, Any] | None]
    started_at: Mapped[float]
    finished_at: Mapped[float | None]


class Tasks(Sealed, Base):
    """Tasks that were rolled out or planned. The same key with two splits or ids is two records."""

    __tablename__ = "tasks"
    __table_args__ = (Index(None, "env", "split"),)

    identity: Mapped[str] = mapped_column(primary_key=True)
    """Hash of (key, split, id)."""
    key: Mapped[str] = mapped_column(index=True)
    env: Mapped[str]
    id: Mapped[str]
    split: Mapped[str]
    messages: Mapped[list[Any]]
    data: Mapped[dict[str, Any]]


class Groups(Sealed, Base):
    """One task's samples; the queue between rollouts and training."""

    __tablename__ = "groups"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "version"], VERSION_KEY),
        Index(None, "run_id", "state", "purpose", "ordinal"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    task: Mapped[str] = mapped_column(ForeignKey("tasks.identity"))
    purpose: Mapped[str]
    ordinal: Mapped[int]
    size: Mapped[int]
    state: Mapped[str]
    dropped_reason: Mapped[str | None]
    owner: Mapped[str | None]
    lease_generation: Mapped[int]
    lease_until: Mapped[float | None]
    """By the database's clock."""
    reissue: Mapped[int]
    version: Mapped[int | None]
    """The policy's version when the group was planned."""
    planned_at: Mapped[float]


class Claims(Base):
    """Who trained on a group: claimed, then consumed or released. One live claim per group and run."""

    __tablename__ = "claims"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "step_id"], STEP_KEY),
        Index(None, "run_id", "step_id"),
        Index(
            "uq_claims_live",
            "group_id",
            "run_id",
            unique=True,
            sqlite_where=text("state <> 'released'"),
            postgresql_where=text("state <> 'released'"),
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    """The run that consumes, not the one that sampled."""
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"))
    step_id: Mapped[int]
    state: Mapped[str]
    claimed_at: Mapped[float]


class Blobs(Base):
    """Contents that come again and again, kept once (see `agentrl.store.blobs`)."""

    __tablename__ = "blobs"

    hash: Mapped[bytes] = mapped_column(primary_key=True)
    content: Mapped[bytes]
    """JSON in UTF-8, ids or a file, as the column that refers to it says."""


class Trajectories(Sealed, Base):
    """One rollout. `stop_reason` is NULL while it runs; nothing but `reward` changes once it is set."""

    __tablename__ = "trajectories"
    __table_args__ = (
        UniqueConstraint("group_id", "sample", "reissue", "attempt"),
        # In the order of lists, with all that is asked for: what doesn't match is passed over without its record.
        Index("ix_trajectories_of_run", "run_id", "started_at", "id", "stop_reason", "reward", "env"),
        Index("ix_trajectories_newest", "started_at", "id", "env", "stop_reason", "reward"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    task: Mapped[str] = mapped_column(ForeignKey("tasks.identity"), index=True)
    group_id: Mapped[str | None] = mapped_column(ForeignKey("groups.id"))
    lease_generation: Mapped[int]
    """The lease under which it is written."""
    sample: Mapped[int]
    attempt: Mapped[int]
    reissue: Mapped[int]
    env_seed: Mapped[int] = mapped_column(BigInteger)
    sampling_seed: Mapped[int] = mapped_column(BigInteger)
    env_version: Mapped[str]
    renderer_mode: Mapped[str]
    template_hash: Mapped[str]
    stop_reason: Mapped[str | None]
    error: Mapped[str | None]
    forked_from_trajectory: Mapped[str | None] = mapped_column(ForeignKey("trajectories.id"))
    forked_from_turn: Mapped[int | None]
    started_at: Mapped[float]
    finished_at: Mapped[float | None]
    num_turns: Mapped[int]
    num_sampled: Mapped[int]
    """Ids sampled in trained turns."""
    env: Mapped[str] = mapped_column(server_default=text("''"))
    """The task's, so that it can be searched for."""
    reward: Mapped[float | None]
    """The latest grade's, so that it can be searched for."""


class Turns(Sealed, Base):
    """One reply. context = full(parent)[:keep] + prompt_ids; full = context + sampled_ids."""

    __tablename__ = "turns"
    __table_args__ = (
        ForeignKeyConstraint(["trajectory_id", "parent"], TURN_KEY),
        _reference("turns", "prompt_ids_hash"),
        _reference("turns", "prompt_messages_hash"),
    )

    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.id"), primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parent: Mapped[int | None]
    keep: Mapped[int]
    agent: Mapped[str]
    trained: Mapped[bool]
    sampler: Mapped[str]
    reward: Mapped[float | None]
    text: Mapped[str]
    """The reply's content."""
    message: Mapped[dict[str, Any]]
    """The reply, without a `content` that is `text` and without `tool_calls` that are those of the table."""
    prompt_messages: Mapped[list[Any]]
    """A tool's message without `content` has the result of the parent's tool call with its `tool_call_id`."""
    prompt_ids: Mapped[bytes]
    sampled_ids: Mapped[bytes]
    logprobs: Mapped[bytes]
    timings: Mapped[dict[str, Any]]
    started_at: Mapped[float]
    prompt_ids_hash: Mapped[bytes | None] = mapped_column(ForeignKey("blobs.hash"))
    """Where it is set, `prompt_ids` is empty, and `blobs` has them."""
    prompt_messages_hash: Mapped[bytes | None] = mapped_column(ForeignKey("blobs.hash"))
    """Where it is set, `prompt_messages` is empty, and `blobs` has them as JSON."""


class EngineCalls(Sealed, Base):
    """One request to an engine, over [span_start, span_end) of a turn's sampled ids."""

    __tablename__ = "engine_calls"
    __table_args__ = (ForeignKeyConstraint(["trajectory_id", "turn"], TURN_KEY),)

    trajectory_id: Mapped[str] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    span_start: Mapped[int]
    span_end: Mapped[int]
    version: Mapped[int]
    request_id: Mapped[str]
    engine: Mapped[str]
    finish_reason: Mapped[str]
    sampling: Mapped[dict[str, Any]]


class ToolCalls(Sealed, Base):
    """One tool call of a turn with what became of it; the span is over the turn's sampled ids."""

    __tablename__ = "tool_calls"
    __table_args__ = (ForeignKeyConstraint(["trajectory_id", "turn"], TURN_KEY),)

    trajectory_id: Mapped[str] = mapped_column(primary_key=True)
    turn: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    call_id: Mapped[str]
    name: Mapped[str]
    raw_arguments: Mapped[str]
    """As the model emitted them."""
    arguments: Mapped[dict[str, Any] | None]
    status: Mapped[str]
    span_start: Mapped[int]
    span_end: Mapped[int]
    error: Mapped[str | None]
    result: Mapped[str | None]
    seconds: Mapped[float]


class ArtifactData(Sealed, Base):
    """The JSON part of a trajectory's artifacts; no record where it is empty."""

    __tablename__ = "artifact_data"

    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.id"), primary_key=True)
    data: Mapped[dict[str, Any]]


class ArtifactFiles(Sealed, Base):
    """The named files of a trajectory's artifacts."""

    __tablename__ = "artifact_files"
    __table_args__ = (_reference("artifact_files", "content_hash"),)

    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    content: Mapped[bytes]
    content_hash: Mapped[bytes | None] = mapped_column(ForeignKey("blobs.hash"))
    """Where it is set, `content` is empty, and `blobs` has it."""


class Grades(Sealed, Base):
    """Append only; the one with the largest id is the latest. `reward` NULL: could not be measured (R2)."""

    __tablename__ = "grades"
    __table_args__ = (CheckConstraint("(reward IS NULL) <> (unmeasured IS NULL)", name="measured_or_reason"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trajectory_id: Mapped[str] = mapped_column(ForeignKey("trajectories.id"), index=True)
    reward: Mapped[float | None]
    unmeasured: Mapped[str | None]
    parts: Mapped[dict[str, Any]]
    turn_rewards: Mapped[list[Any] | None]
    grader: Mapped[str]
    grader_version: Mapped[str]
    output: Mapped[str | None]
    """What the grader wrote."""
    created_at: Mapped[float]


class StepRows(Sealed, Base):
    """A Row of a step: enough to build it again (S3) and to find the steps of a trajectory (S2)."""

    __tablename__ = "step_rows"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "step_id"], STEP_KEY),
        ForeignKeyConstraint(["trajectory_id", "end_turn"], TURN_KEY),
        Index(None, "trajectory_id"),
    )

    run_id: Mapped[str] = mapped_column(primary_key=True)
    step_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    batch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    trajectory_id: Mapped[str]
    end_turn: Mapped[int]
    grade_id: Mapped[int | None] = mapped_column(ForeignKey("grades.id"))
    advantage: Mapped[float | None]
    weights: Mapped[list[Any]]
    """Runs of [start, end, weight, reason] over the Row's ids."""
    ratio_mean: Mapped[float | None]
    ratio_max: Mapped[float | None]
    clip_share: Mapped[float | None]


def table(model: type[Base]) -> Table:
    """The Core table behind `model`: writes go past the ORM's unit of work."""
    return cast(Table, model.__table__)
