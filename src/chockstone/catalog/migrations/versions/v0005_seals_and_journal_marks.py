"""Seals of archives in their rows, and how far the journal of each run was acknowledged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("seal", sa.Text))
    op.add_column("trash", sa.Column("seal", sa.Text))
    op.add_column("sampling_sessions", sa.Column("seal", sa.Text))
    op.add_column("recoveries", sa.Column("lost", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "journal_marks",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("birth", sa.Text, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("operations", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_journal_marks"),
    )
