"""The schema: all tables of the catalog, and a column type for points in time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeDecorator


class Moment(TypeDecorator[datetime]):
    """Takes aware datetimes of any zone and gives them back in UTC; naive ones are refused.

    SQLite has no zones: it keeps UTC as text of fixed width, so that text order is time order.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} names no time zone; give an aware datetime")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

_PENDING: Final = text("state = 'pending'")
_PUBLISHED: Final = text("state <> 'pending'")

users: Final = Table(
    "users",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("created_at", Moment, nullable=False),
)

sessions: Final = Table(
    "sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("project_id", Text),
    Column("display_name", Text),
    Column("display_name_folded", Text),  # what a search compares; databases disagree on lower()
    Column("tags", JSON, nullable=False),
    Column("user_metadata", JSON, nullable=False),
    Column("sdk_version", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("last_heartbeat_at", Moment, nullable=False),
    Column("finished_at", Moment),
    Column("finish_reason", Text),
    Column("finish_detail", Text),
    Column("idempotency_key", Text),
    UniqueConstraint("owner", "idempotency_key"),
    Index(None, "owner", "created_at", "session_id"),
    Index(None, "created_at", "session_id"),
)

# The entries of sessions.user_metadata once more, to search by: JSON paths cannot name every key.
session_metadata: Final = Table(
    "session_metadata",
    metadata,
    Column("session_id", Text, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

runs: Final = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.session_id"), nullable=False),
    Column("model_seq_id", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("optimizer_config", JSON, nullable=False),
    Column("user_metadata", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("last_request_at", Moment, nullable=False),
    Column("project_id", Text),
    Column("state", String(16), nullable=False),
    Column("failure", Text),
    Column("steps", BigInteger),  # progress, as of the last flush; null: not known
    Column("last_loss", Double),
    Column("parent", Text),  # path of the checkpoint of another run that was loaded last
    Column("tokens", BigInteger),  # trained, as of the last flush; null: not known
    UniqueConstraint("session_id", "model_seq_id"),
    Index(None, "owner", "created_at", "run_id"),
    Index(None, "created_at", "run_id"),
    Index(None, "state"),
)

checkpoints: Final = Table(
    "checkpoints",
    metadata,
    Column("save_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("run_id", Text, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("archive", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("overwrites", Boolean, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("public", Boolean, nullable=False),
    Column("user_metadata", JSON, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("optimizer_config", JSON, nullable=False),
    Column("step", BigInteger),
    Column("damage", Text),
    Column("verified_at", Moment),
    Column(
        "seal", Text
    ),  # SHA-256 of its archive's manifest, which binds all its bytes; null in rows of older versions
    # One published and one being written under a name: an overwrite leaves the old one loadable until it commits.
    Index(
        "uq_checkpoints_pending",
        *("run_id", "kind", "name"),
        unique=True,
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    ),
    Index(
        "uq_checkpoints_published",
        *("run_id", "kind", "name"),
        unique=True,
        sqlite_where=_PUBLISHED,
        postgresql_where=_PUBLISHED,
    ),
    Index(None, "run_id", "kind", "created_at"),
    Index(None, "owner", "created_at", "save_id"),
    Index(None, "created_at", "save_id"),
    Index(None, "expires_at"),
    Index(None, "archive"),
    sqlite_autoincrement=True,  # the number of a save that was given up must not come back
)

# Removed checkpoints whose archives are in the store yet: the columns of ``checkpoints`` and why they are here.
trash: Final = Table(
    "trash",
    metadata,
    Column("trash_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("reason", Text, nullable=False),
    Column("discarded_at", Moment, nullable=False),
    Column("purge_at", Moment, nullable=False),
    *(Column(each.name, each.type, nullable=each.nullable) for each in checkpoints.columns),
    UniqueConstraint("save_id"),
    Index(None, "purge_at", "trash_id"),
    Index(None, "discarded_at", "trash_id"),
    Index(None, "owner", "discarded_at", "trash_id"),
    sqlite_autoincrement=True,  # a number seen once must not come to mean another checkpoint
)

sampling_sessions: Final = Table(
    "sampling_sessions",
    metadata,
    Column("sampling_session_id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.session_id"), nullable=False),
    Column("seq_id", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("base_model", Text, nullable=False),
    Column("model_path", Text),
    Column("archive", Text),
    Column("created_at", Moment, nullable=False),
    Column("next_client_counter", BigInteger, nullable=False),
    Column("seal", Text),  # of the archive
    UniqueConstraint("session_id", "seq_id"),
    Index(None, "archive"),
    Index(None, "created_at", "sampling_session_id"),
)

# The newest gap of weights on each vLLM server. Rows outlive the weights for a while, and so refer to none.
sampler_gaps: Final = Table(
    "sampler_gaps",
    metadata,
    Column("base_model", Text, primary_key=True),
    Column("archive", Text, primary_key=True),  # empty: the base model itself
    Column("server", Text, primary_key=True),
    Column("mean", Double),  # null: it could not be measured
    Column("largest", Double),
    Column("tokens", BigInteger, nullable=False),
    Column("trouble", Text),
    Column("measured_at", Moment, nullable=False),
    Index(None, "archive"),
)

custom_losses: Final = Table(
    "custom_losses",
    metadata,
    Column("loss_id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.session_id"), nullable=False),
    Column("custom_loss_seq_id", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("definition", JSON, nullable=False),
    Column("created_at", Moment, nullable=False),
    UniqueConstraint("session_id", "custom_loss_seq_id"),
)

policies: Final = Table(
    "policies",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("policy", JSON, nullable=False),
    Column("changed_at", Moment, nullable=False),
    Column("changed_by", Text, nullable=False),
)

# One row for each change of an alias; the newest one of a name is its present target.
aliases: Final = Table(
    "aliases",
    metadata,
    Column("owner", Text, primary_key=True),  # empty: for all users
    Column("name", Text, primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("action", String(16), nullable=False),
    Column("target", Text),  # null: removed
    Column("undo_revision", BigInteger),
    Column("changed_at", Moment, nullable=False),
    Column("changed_by", Text, nullable=False),
    Column("stores", Boolean, nullable=False, server_default=false()),
)

audit: Final = Table(
    "audit",
    metadata,
    Column("audit_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("event", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("run_id", Text),
    Column("path", Text),
    Column("purpose", Text),
    Column("details", JSON, nullable=False),
    Index(None, "owner", "at"),
    Index(None, "at"),
    Index(None, "run_id", "at"),
)

# What belongs to no session or project has empty ones: a key has no nulls.
usage: Final = Table(
    "usage",
    metadata,
    Column("bucket_start", Moment, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("project_id", Text, primary_key=True),
    Column("base_model", Text, primary_key=True),
    Column("type", String(32), primary_key=True),
    Column("cached", Boolean, primary_key=True),
    Column("amount", Double, nullable=False),
)

# How far each journal is counted in the usage. Written in the same transaction as the amounts, so that no use is
# counted twice or lost.
usage_positions: Final = Table(
    "usage_positions",
    metadata,
    Column("source", Text, primary_key=True),
    Column("birth", Text, nullable=False),
    Column("counted", BigInteger, nullable=False),
    Column("through", BigInteger, nullable=False),
)

# Receipts outlive their runs' rows as audit entries do, and so refer to none.
recoveries: Final = Table(
    "recoveries",
    metadata,
    Column("recovery_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("run_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("reason", Text, nullable=False),
    Column("archive", Text),
    Column("skipped", JSON, nullable=False),
    Column("replayed", BigInteger, nullable=False),
    Column("redone", BigInteger, nullable=False),
    Column("matched", BigInteger, nullable=False),
    Column("mismatched", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("notes", JSON, nullable=False),
    Column("lost", BigInteger, nullable=False, server_default="0"),
    Column("differing", JSON, nullable=False, server_default="[]"),  # the first of the mismatched operations
    Column("uncompared", JSON, nullable=False, server_default="[]"),  # the first of the others
    Index(None, "run_id", "recovery_id"),
    sqlite_autoincrement=True,  # the newest is the one with the highest number
)

# How far the journal of a run was acknowledged: a journal that ends before that has lost its end.
journal_marks: Final = Table(
    "journal_marks",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("birth", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("operations", BigInteger, nullable=False),
)

keys: Final = Table(
    "keys",
    metadata,
    Column("key_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("user_id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
    UniqueConstraint("digest"),
    sqlite_autoincrement=True,  # revoking a number twice must not meet another key
)

# Of the engine that runs on this catalog: the journals of its runs are in one data directory. One row at most.
engine: Final = Table(
    "engine",
    metadata,
    Column("engine_id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("bound_at", Moment, nullable=False),
)
