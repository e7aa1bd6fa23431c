"""Runs and their checkpoints, as they are listed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.paths import CheckpointType, TinkerPath
from chockstone.wire.schema import Identifier, LongCounter, Request, Response, Timestamp

AccessScope = Literal["owned", "accessible"]


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
    ) -> Checkpoint:
        return cls(
            checkpoint_id=path.checkpoint_id,
            checkpoint_type=path.kind.checkpoint_type,
            time=time,
            tinker_path=str(path),
            size_bytes=size_bytes,
            public=public,
            user_metadata=user_metadata,
            expires_at=expires_at,
        )


class TrainingRun(Response):
    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    last_request_time: Timestamp
    corrupted: bool = False
    lora_rank: int | None = None
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None


class TrainingRunsResponse(Response):
    training_runs: list[TrainingRun]
    cursor: Cursor


class ListQuery(Request):
    """The query of a list of sessions or runs, as text."""

    limit: Annotated[int, Field(ge=0, le=1000, strict=False)] = 20
    offset: Annotated[LongCounter, Field(strict=False)] = 0
    access_scope: AccessScope = "owned"
    project_id: Identifier | None = None
