"""Ids take less room, what repeats is kept once, and lists are found by indexes.

Ids are encoded anew. What is stored twice in older records stays so; they are read as before.
"""

from __future__ import annotations

import struct

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

PAGE = 1000
"""Turns that are encoded at a time."""
REFERENCES = (
    ("turns", "prompt_ids_hash"),
    ("turns", "prompt_messages_hash"),
    ("artifact_files", "content_hash"),
)


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_blobs")),
    )
    for table, column in REFERENCES:
        _add_reference(table, column)
    _add_what_is_searched_for()
    op.drop_index(op.f("ix_trajectories_run_id_stop_reason"), "trajectories")
    op.drop_index(op.f("ix_trajectories_started_at"), "trajectories")
    op.drop_index(op.f("ix_tool_calls_name_status"), "tool_calls")
    op.create_index(
        "ix_trajectories_of_run", "trajectories", ["run_id", "started_at", "id", "stop_reason", "reward", "env"]
    )
    op.create_index("ix_trajectories_newest", "trajectories", ["started_at", "id", "env", "stop_reason", "reward"])
    _encode(_widths_to_varints)


def downgrade() -> None:
    """What `blobs` and other tables hold instead of turns isn't put back: for databases without records."""
    _encode(_varints_to_widths)
    op.drop_index("ix_trajectories_newest", "trajectories")
    op.drop_index("ix_trajectories_of_run", "trajectories")
    op.create_index(op.f("ix_tool_calls_name_status"), "tool_calls", ["name", "status"])
    op.create_index(op.f("ix_trajectories_started_at"), "trajectories", ["started_at"])
    op.create_index(op.f("ix_trajectories_run_id_stop_reason"), "trajectories", ["run_id", "stop_reason"])
    op.drop_column("trajectories", "reward")
    op.drop_column("trajectories", "env")
    for table, column in REFERENCES:
        op.drop_index(f"ix_{table}_{column}", table)
        op.drop_column(table, column)
    op.drop_table("blobs")


def _add_reference(table: str, column: str) -> None:
    """Alembic would copy a whole table of SQLite's for a column that refers to another table."""
    kind = "BYTEA" if op.get_bind().dialect.name == "postgresql" else "BLOB"
    op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind} CONSTRAINT fk_{table}_{column} REFERENCES blobs (hash)")
    is_set = sa.text(f"{column} IS NOT NULL")
    op.create_index(f"ix_{table}_{column}", table, [column], sqlite_where=is_set, postgresql_where=is_set)


def _add_what_is_searched_for() -> None:
    op.add_column("trajectories", sa.Column("env", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.add_column("trajectories", sa.Column("reward", sa.Double(), nullable=True))
    op.execute("UPDATE trajectories SET env = (SELECT env FROM tasks WHERE identity = trajectories.task)")
    latest = "SELECT max(g.id) FROM grades g WHERE g.trajectory_id = trajectories.id"
    op.execute(f"UPDATE trajectories SET reward = (SELECT reward FROM grades WHERE id = ({latest}))")


def _encode(encoded) -> None:  # type: ignore[no-untyped-def]
    """Write the ids of all turns anew, page by page."""
    connection = op.get_bind()
    page = sa.text(
        "SELECT trajectory_id, turn, prompt_ids, sampled_ids FROM turns "
        f"WHERE (trajectory_id, turn) > (:id, :turn) ORDER BY trajectory_id, turn LIMIT {PAGE}"
    )
    change = sa.text(
        "UPDATE turns SET prompt_ids = :prompt, sampled_ids = :sampled WHERE trajectory_id = :id AND turn = :turn"
    )
    last = {"id": "", "turn": -1}
    while records := connection.execute(page, last).all():
        changes = [
            {"id": id, "turn": turn, "prompt": encoded(bytes(prompt)), "sampled": encoded(bytes(sampled))}
            for id, turn, prompt, sampled in records
        ]
        connection.execute(change, changes)
        last = {"id": records[-1].trajectory_id, "turn": records[-1].turn}


def _widths_to_varints(blob: bytes) -> bytes:
    """From four bytes an id. What is damaged stays as it is: `agentrl db verify` will name it."""
    if len(blob) % 4:
        return blob
    encoded = bytearray()
    for id in struct.unpack(f"<{len(blob) // 4}I", blob):
        while id > 0x7F:
            encoded.append(id & 0x7F | 0x80)
            id >>= 7
        encoded.append(id)
    return bytes(encoded)


def _varints_to_widths(blob: bytes) -> bytes:
    ids, id, shift = [], 0, 0
    for byte in blob:
        id |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            ids.append(id)
            id = shift = 0
    return struct.pack(f"<{len(ids)}I", *ids)
