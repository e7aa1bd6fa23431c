"""The life of a checkpoint: trash and verification; policies, audit, usage and keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_MOMENT = sa.DateTime(timezone=True)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("verified_at", _MOMENT))
    op.create_index("ix_checkpoints_created_at_save_id", "checkpoints", ["created_at", "save_id"])
    op.create_index("ix_checkpoints_archive", "checkpoints", ["archive"])
    op.create_index("ix_sampling_sessions_archive", "sampling_sessions", ["archive"])
    op.create_table(
        "trash",
        sa.Column("trash_id", _NUMBER, nullable=False, autoincrement=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("discarded_at", _MOMENT, nullable=False),
        sa.Column("purge_at", _MOMENT, nullable=False),
        sa.Column("save_id", _NUMBER, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("archive", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("overwrites", sa.Boolean, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT),
        sa.Column("public", sa.Boolean, nullable=False),
        sa.Column("user_metadata", sa.JSON, nullable=False),
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("optimizer_config", sa.JSON, nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("damage", sa.Text),
        sa.Column("verified_at", _MOMENT),
        sa.PrimaryKeyConstraint("trash_id", name="pk_trash"),
        sa.UniqueConstraint("save_id", name="uq_trash_save_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_trash_purge_at_trash_id", "trash", ["purge_at", "trash_id"])
    op.create_index("ix_trash_discarded_at_trash_id", "trash", ["discarded_at", "trash_id"])
    op.create_index("ix_trash_owner_discarded_at_trash_id", "trash", ["owner", "discarded_at", "trash_id"])
    op.create_table(
        "policies",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("policy", sa.JSON, nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("scope", name="pk_policies"),
    )
    op.create_table(
        "audit",
        sa.Column("audit_id", _NUMBER, nullable=False, autoincrement=True),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("path", sa.Text),
        sa.Column("purpose", sa.Text),
        sa.Column("details", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name="pk_audit"),
    )
    op.create_index("ix_audit_owner_at", "audit", ["owner", "at"])
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "usage",
        sa.Column("bucket_start", _MOMENT, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("cached", sa.Boolean, nullable=False),
        sa.Column("amount", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint(
            *("bucket_start", "owner", "session_id", "project_id", "base_model", "type", "cached"), name="pk_usage"
        ),
    )
    op.create_table(
        "keys",
        sa.Column("key_id", _NUMBER, nullable=False, autoincrement=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("revoked_at", _MOMENT),
        sa.PrimaryKeyConstraint("key_id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
        sqlite_autoincrement=True,
    )
