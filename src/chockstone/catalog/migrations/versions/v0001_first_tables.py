"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "users",
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_users"),
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("display_name", sa.Text),
        sa.Column("display_name_folded", sa.Text),
        sa.Column("tags", sa.JSON, nullable=False),
        sa.Column("user_metadata", sa.JSON, nullable=False),
        sa.Column("sdk_version", sa.Text, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("last_heartbeat_at", _MOMENT, nullable=False),
        sa.Column("finished_at", _MOMENT),
        sa.Column("finish_reason", sa.Text),
        sa.Column("finish_detail", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
        sa.UniqueConstraint("owner", "idempotency_key", name="uq_sessions_owner_idempotency_key"),
    )
    op.create_index("ix_sessions_owner_created_at_session_id", "sessions", ["owner", "created_at", "session_id"])
    op.create_index("ix_sessions_created_at_session_id", "sessions", ["created_at", "session_id"])
    op.create_table(
        "session_metadata",
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "key", name="pk_session_metadata"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.session_id"], name="fk_session_metadata_session_id", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("model_seq_id", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("optimizer_config", sa.JSON, nullable=False),
        sa.Column("user_metadata", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("last_request_at", _MOMENT, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("failure", sa.Text),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_runs_session_id"),
        sa.UniqueConstraint("session_id", "model_seq_id", name="uq_runs_session_id_model_seq_id"),
    )
    op.create_index("ix_runs_owner_created_at_run_id", "runs", ["owner", "created_at", "run_id"])
    op.create_index("ix_runs_created_at_run_id", "runs", ["created_at", "run_id"])
    op.create_table(
        "checkpoints",
        sa.Column("save_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True),
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
        sa.PrimaryKeyConstraint("save_id", name="pk_checkpoints"),
        sqlite_autoincrement=True,
    )
    for index, condition in (
        ("uq_checkpoints_pending", sa.text("state = 'pending'")),
        ("uq_checkpoints_published", sa.text("state <> 'pending'")),
    ):
        op.create_index(
            index,
            "checkpoints",
            ["run_id", "kind", "name"],
            unique=True,
            sqlite_where=condition,
            postgresql_where=condition,
        )
    op.create_index("ix_checkpoints_run_id_kind_created_at", "checkpoints", ["run_id", "kind", "created_at"])
    op.create_index("ix_checkpoints_owner_created_at_save_id", "checkpoints", ["owner", "created_at", "save_id"])
    op.create_index("ix_checkpoints_expires_at", "checkpoints", ["expires_at"])
    op.create_table(
        "sampling_sessions",
        sa.Column("sampling_session_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("seq_id", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("model_path", sa.Text),
        sa.Column("archive", sa.Text),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("next_client_counter", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("sampling_session_id", name="pk_sampling_sessions"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_sampling_sessions_session_id"),
        sa.UniqueConstraint("session_id", "seq_id", name="uq_sampling_sessions_session_id_seq_id"),
    )
    op.create_table(
        "custom_losses",
        sa.Column("loss_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("custom_loss_seq_id", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("loss_id", name="pk_custom_losses"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_custom_losses_session_id"),
        sa.UniqueConstraint("session_id", "custom_loss_seq_id", name="uq_custom_losses_session_id_custom_loss_seq_id"),
    )
