"""Tokens that each run trained, and indexes for operators' lists: samplers by age, and the audit of one run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("runs", sa.Column("tokens", sa.BigInteger))
    op.create_index(
        "ix_sampling_sessions_created_at_sampling_session_id",
        "sampling_sessions",
        ["created_at", "sampling_session_id"],
    )
    op.create_index("ix_audit_run_id_at", "audit", ["run_id", "at"])
