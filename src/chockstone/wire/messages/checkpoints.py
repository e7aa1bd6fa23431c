"""Checkpoints, as they are listed, changed and fetched."""

from __future__ import annotations

from typing import Literal

from chockstone.wire.messages.schema import Request, Response, Timestamp, TtlSeconds
from chockstone.wire.paths import CheckpointType, TinkerPath

CheckpointState = Literal["ready", "damaged"]
DAMAGE_FIELD = "chockstone.damage"  # of the metadata, where clients that know no states show it


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
        """A damaged one says so in its metadata too, for clients that show nothing else."""
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
    """Newer than what ``latest`` came to mean, and why it was passed over."""

    path: str
    reason: str


class SetTtlRequest(Request):
    """Counted from now. An explicit null takes the expiry away; leaving it out is a mistake."""

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
