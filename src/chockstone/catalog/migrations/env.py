"""What alembic runs to migrate: the connection is the caller's, and so is the transaction."""

from __future__ import annotations

from alembic import context

from chockstone.catalog import schema as tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    render_as_batch=True,  # SQLite alters tables by copying them
)
context.run_migrations()
