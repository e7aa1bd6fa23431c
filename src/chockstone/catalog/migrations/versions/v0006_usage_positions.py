"""How far each journal is counted in the usage."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "usage_positions",
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("birth", sa.Text, nullable=False),
        sa.Column("counted", sa.BigInteger, nullable=False),
        sa.Column("through", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("source", name="pk_usage_positions"),
    )
