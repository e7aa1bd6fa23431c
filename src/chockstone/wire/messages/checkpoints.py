"""Checkpoints: messages to list, change and fetch them."""

from __future__ import annotations

from typing import Literal

from chockstone.wire.messages.schema import Request, Response, Timestamp, TtlSeconds
from chockstone.wire.paths import CheckpointType, TinkerPath

CheckpointState = Literal["ready", "damaged"]
DAMAGE_FIELD = "chockstone.damage"  # in the metadata, for clients that do not know states


class Cursor(Response):
    offset: int
    limit: int
    total_count: int


class Checkpoint(Response):
    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: Timestamp
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: Timestamp | None = None
    state: CheckpointState | None = None
    damage: str | None = None

    @classmethod
    def at(
        cls,
        path: TinkerPath,
        *,
        time: Timestamp,
        size_bytes: int | None = None,
        public: bool = False,
        user_metadata: dict[str, str] | None = None,
        expires_at: Timestamp | None = None,
        state: CheckpointState | None = None,
        damage: str | None = None,
    ) -> Checkpoint:
        """A damaged checkpoint has its damage in the metadata, too, for clients that show only that."""
        if damage is not None:
            user_metadata = {**(user_metadata or {}), DAMAGE_FIELD: damage}
        return cls(
            checkpoint_id=path.checkpoint_id,
            checkpoint_type=path.kind.checkpoint_type,
            time=time,
            tinker_path=str(path),
            size_bytes=size_bytes,
            public=public,
            user_metadata=user_metadata,
            expires_at=expires_at,
            state=state,
            damage=damage,
        )


class CheckpointsResponse(Response):
    """Without a cursor there are no further pages."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class SkippedCheckpoint(Response):
    """A newer checkpoint that ``latest`` skipped, and why."""

    path: str
    reason: str


class SetTtlRequest(Request):
    """Counted from now. An explicit null removes the expiry; the field is required."""

    ttl_seconds: TtlSeconds | None


class VerifyResponse(Response):
    state: CheckpointState
    damage: str | None = None


class ArchiveUrlResponse(Response):
    url: str
    expires: Timestamp


class ExternalWeightsUrlsResponse(Response):
    """A self-authorising URL for each file, by its path below the export's root."""

    urls: dict[str, str]
    expires: Timestamp
