"""How far the log-probabilities of vLLM servers are from the exact ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "sampler_gaps",
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("archive", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("mean", sa.Double),
        sa.Column("largest", sa.Double),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("trouble", sa.Text),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("base_model", "archive", "server", name="pk_sampler_gaps"),
    )
    op.create_index("ix_sampler_gaps_archive", "sampler_gaps", ["archive"])
