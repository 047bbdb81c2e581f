"""The whole data model, from the first version on: see `agentrl.store.tables` for what the columns mean."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _runs()
    _versions()
    _tasks()
    _steps()
    _groups()
    _claims()
    _trajectories()
    _turns()
    _engine_calls()
    _tool_calls()
    _artifact_data()
    _artifact_files()
    _grades()
    _step_rows()


def downgrade() -> None:
    for name in reversed(TABLES):
        op.drop_table(name)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("packages", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("git_commit", sa.Text(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_name"), "runs", ["name"], unique=False)


def _versions() -> None:
    op.create_table(
        "versions",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("parent_run_id", sa.Text(), nullable=True),
        sa.Column("parent_version", sa.Integer(), nullable=True),
        sa.Column("step_id", sa.Integer(), nullable=True),
        sa.Column("weights_hash", sa.Text(), nullable=False),
        sa.Column("abandoned", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_run_id", "parent_version"],
            ["versions.run_id", "versions.id"],
            name=op.f("fk_versions_parent_run_id_parent_version"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_versions_run_id")),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pk_versions")),
    )


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("env", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("messages", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("identity", name=op.f("pk_tasks")),
    )
    op.create_index(op.f("ix_tasks_env_split"), "tasks", ["env", "split"], unique=False)
    op.create_index(op.f("ix_tasks_key"), "tasks", ["key"], unique=False)


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("version_before", sa.Integer(), nullable=False),
        sa.Column("version_after", sa.Integer(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("abandoned", sa.Boolean(), nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "version_after"], ["versions.run_id", "versions.id"], name=op.f("fk_steps_run_id_version_after")
        ),
        sa.ForeignKeyConstraint(
            ["run_id", "version_before"],
            ["versions.run_id", "versions.id"],
            name=op.f("fk_steps_run_id_version_before"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_steps_run_id")),
        sa.PrimaryKeyConstraint("run_id", "id", name=op.f("pk_steps")),
    )


def _groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("dropped_reason", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_generation", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("reissue", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id", "version"], ["versions.run_id", "versions.id"], name=op.f("fk_groups_run_id_version")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_groups_run_id")),
        sa.ForeignKeyConstraint(["task"], ["tasks.identity"], name=op.f("fk_groups_task")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
    )
    op.create_index(
        op.f("ix_groups_run_id_state_purpose_ordinal"),
        "groups",
        ["run_id", "state", "purpose", "ordinal"],
        unique=False,
    )


def _claims() -> None:
    op.create_table(
        "claims",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("step_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_claims_group_id")),
        sa.ForeignKeyConstraint(
            ["run_id", "step_id"], ["steps.run_id", "steps.id"], name=op.f("fk_claims_run_id_step_id")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_claims_run_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
    )
    op.create_index(op.f("ix_claims_run_id_step_id"), "claims", ["run_id", "step_id"], unique=False)
    op.create_index(
        "uq_claims_live",
        "claims",
        ["group_id", "run_id"],
        unique=True,
        sqlite_where=sa.text("state <> 'released'"),
        postgresql_where=sa.text("state <> 'released'"),
    )


def _trajectories() -> None:
    op.create_table(
        "trajectories",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=True),
        sa.Column("lease_generation", sa.Integer(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reissue", sa.Integer(), nullable=False),
        sa.Column("env_seed", sa.BigInteger(), nullable=False),
        sa.Column("sampling_seed", sa.BigInteger(), nullable=False),
        sa.Column("env_version", sa.Text(), nullable=False),
        sa.Column("renderer_mode", sa.Text(), nullable=False),
        sa.Column("template_hash", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("forked_from_trajectory", sa.Text(), nullable=True),
        sa.Column("forked_from_turn", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("num_turns", sa.Integer(), nullable=False),
        sa.Column("num_sampled", sa.Integer(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["forked_from_trajectory"], ["trajectories.id"], name=op.f("fk_trajectories_forked_from_trajectory")
        ),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_trajectories_group_id")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_trajectories_run_id")),
        sa.ForeignKeyConstraint(["task"], ["tasks.identity"], name=op.f("fk_trajectories_task")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trajectories")),
        sa.UniqueConstraint(
            "group_id", "sample", "reissue", "attempt", name=op.f("uq_trajectories_group_id_sample_reissue_attempt")
        ),
    )
    op.create_index(op.f("ix_trajectories_run_id_stop_reason"), "trajectories", ["run_id", "stop_reason"], unique=False)
    op.create_index(op.f("ix_trajectories_started_at"), "trajectories", ["started_at"], unique=False)
    op.create_index(op.f("ix_trajectories_task"), "trajectories", ["task"], unique=False)


def _turns() -> None:
    op.create_table(
        "turns",
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("keep", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("trained", sa.Boolean(), nullable=False),
        sa.Column("sampler", sa.Text(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("message", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("prompt_messages", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("sampled_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("timings", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trajectory_id", "parent"],
            ["turns.trajectory_id", "turns.turn"],
            name=op.f("fk_turns_trajectory_id_parent"),
        ),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectories.id"], name=op.f("fk_turns_trajectory_id")),
        sa.PrimaryKeyConstraint("trajectory_id", "turn", name=op.f("pk_turns")),
    )


def _engine_calls() -> None:
    op.create_table(
        "engine_calls",
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("span_start", sa.Integer(), nullable=False),
        sa.Column("span_end", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.Column("sampling", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trajectory_id", "turn"],
            ["turns.trajectory_id", "turns.turn"],
            name=op.f("fk_engine_calls_trajectory_id_turn"),
        ),
        sa.PrimaryKeyConstraint("trajectory_id", "turn", "position", name=op.f("pk_engine_calls")),
    )


def _tool_calls() -> None:
    op.create_table(
        "tool_calls",
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("raw_arguments", sa.Text(), nullable=False),
        sa.Column("arguments", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("span_start", sa.Integer(), nullable=False),
        sa.Column("span_end", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["trajectory_id", "turn"],
            ["turns.trajectory_id", "turns.turn"],
            name=op.f("fk_tool_calls_trajectory_id_turn"),
        ),
        sa.PrimaryKeyConstraint("trajectory_id", "turn", "position", name=op.f("pk_tool_calls")),
    )
    op.create_index(op.f("ix_tool_calls_name_status"), "tool_calls", ["name", "status"], unique=False)


def _artifact_data() -> None:
    op.create_table(
        "artifact_data",
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectories.id"], name=op.f("fk_artifact_data_trajectory_id")),
        sa.PrimaryKeyConstraint("trajectory_id", name=op.f("pk_artifact_data")),
    )


def _artifact_files() -> None:
    op.create_table(
        "artifact_files",
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectories.id"], name=op.f("fk_artifact_files_trajectory_id")),
        sa.PrimaryKeyConstraint("trajectory_id", "position", name=op.f("pk_artifact_files")),
    )


def _grades() -> None:
    op.create_table(
        "grades",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("unmeasured", sa.Text(), nullable=True),
        sa.Column("parts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("turn_rewards", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("grader", sa.Text(), nullable=False),
        sa.Column("grader_version", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint("(reward IS NULL) <> (unmeasured IS NULL)", name=op.f("ck_grades_measured_or_reason")),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectories.id"], name=op.f("fk_grades_trajectory_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grades")),
    )
    op.create_index(op.f("ix_grades_trajectory_id"), "grades", ["trajectory_id"], unique=False)


def _step_rows() -> None:
    op.create_table(
        "step_rows",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("step_id", sa.Integer(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("end_turn", sa.Integer(), nullable=False),
        sa.Column("grade_id", sa.Integer(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("weights", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("ratio_mean", sa.Double(), nullable=True),
        sa.Column("ratio_max", sa.Double(), nullable=True),
        sa.Column("clip_share", sa.Double(), nullable=True),
        sa.Column("raw", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["grade_id"], ["grades.id"], name=op.f("fk_step_rows_grade_id")),
        sa.ForeignKeyConstraint(
            ["run_id", "step_id"], ["steps.run_id", "steps.id"], name=op.f("fk_step_rows_run_id_step_id")
        ),
        sa.ForeignKeyConstraint(
            ["trajectory_id", "end_turn"],
            ["turns.trajectory_id", "turns.turn"],
            name=op.f("fk_step_rows_trajectory_id_end_turn"),
        ),
        sa.PrimaryKeyConstraint("run_id", "step_id", "batch", "position", name=op.f("pk_step_rows")),
    )
    op.create_index(op.f("ix_step_rows_trajectory_id"), "step_rows", ["trajectory_id"], unique=False)


TABLES = [
    "runs",
    "versions",
    "tasks",
    "steps",
    "groups",
    "claims",
    "trajectories",
    "turns",
    "engine_calls",
    "tool_calls",
    "artifact_data",
    "artifact_files",
    "grades",
    "step_rows",
]
