"""Whether the conversations with what an alias stands for are stored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("aliases", sa.Column("stores", sa.Boolean, nullable=False, server_default=sa.false()))
