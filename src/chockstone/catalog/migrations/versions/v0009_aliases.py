"""Aliases: names that stand for a checkpoint or a base model, with their history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "aliases",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("target", sa.Text),
        sa.Column("undo_revision", sa.BigInteger),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("owner", "name", "revision", name="pk_aliases"),
    )
