"""Progress and parent of each run, and which operations of a recovery differed or were not compared."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("runs", sa.Column("steps", sa.BigInteger))
    op.add_column("runs", sa.Column("last_loss", sa.Double))
    op.add_column("runs", sa.Column("parent", sa.Text))
    op.add_column("recoveries", sa.Column("differing", sa.JSON, nullable=False, server_default="[]"))
    op.add_column("recoveries", sa.Column("uncompared", sa.JSON, nullable=False, server_default="[]"))
