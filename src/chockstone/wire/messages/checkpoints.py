"""Checkpoints: messages to list, change and fetch them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from chockstone.wire.messages.schema import Identifier, Name, Request, Response, Timestamp, TtlSeconds, UserMetadata
from chockstone.wire.messages.sessions import OwnSessions, SearchOwner
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
    base_model: str | None = None
    sampler_gap: float | None = None  # mean difference of log-probabilities by vLLM, where it is largest, in nats

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
        base_model: str | None = None,
        sampler_gap: float | None = None,
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
            base_model=base_model,
            sampler_gap=sampler_gap,
        )


class CheckpointsResponse(Response):
    """Without a cursor there are no further pages."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class CheckpointSearchCursor(Request):
    """Where the next page starts: after this checkpoint, newest first."""

    last_created_at: Annotated[AwareDatetime, Field(strict=False)]
    last_checkpoint_uuid: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]  # as an earlier page gave it


class SearchCheckpointsRequest(Request):
    """All conditions must hold."""

    project_ids: Annotated[list[Identifier], Field(max_length=100)] | None = None
    user_metadata: UserMetadata = Field(default_factory=dict)  # each entry must be equal
    checkpoint_type: CheckpointType | None = None
    owner: SearchOwner = OwnSessions()
    base_models: Annotated[list[Name], Field(max_length=100)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: CheckpointSearchCursor | None = None


class NextCheckpoints(Response):
    last_created_at: Timestamp
    last_checkpoint_uuid: str


class SearchCheckpointsResponse(Response):
    checkpoints: list[Checkpoint]
    next_cursor: NextCheckpoints | None = None


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
