"""What a grader wrote is kept beside its grade."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("grades", sa.Column("output", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("grades", "output")
