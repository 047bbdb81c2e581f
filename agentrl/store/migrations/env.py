"""Alembic's entry: runs migrations on the connection, and in the transaction, of whoever opened the store."""

from __future__ import annotations

from alembic import context

from agentrl.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite can't alter a table; batch mode copies it
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
