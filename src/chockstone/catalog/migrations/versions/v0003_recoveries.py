"""Recoveries: receipts of runs that were brought back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "recoveries",
        sa.Column(
            "recovery_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True
        ),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("archive", sa.Text),
        sa.Column("skipped", sa.JSON, nullable=False),
        sa.Column("replayed", sa.BigInteger, nullable=False),
        sa.Column("redone", sa.BigInteger, nullable=False),
        sa.Column("matched", sa.BigInteger, nullable=False),
        sa.Column("mismatched", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("notes", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("recovery_id", name="pk_recoveries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_recoveries_run_id_recovery_id", "recoveries", ["run_id", "recovery_id"])
    op.create_index("ix_runs_state", "runs", ["state"])
