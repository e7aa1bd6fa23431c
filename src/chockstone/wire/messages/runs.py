"""Runs, as they are listed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.messages.checkpoints import Checkpoint, Cursor
from chockstone.wire.messages.schema import Identifier, LongCounter, Request, Response, Timestamp

AccessScope = Literal["owned", "accessible"]


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
    last_external_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None
    state: Literal["active", "parked", "unloaded", "lost"] | None = None  # told to the owner


class TrainingRunsResponse(Response):
    training_runs: list[TrainingRun]
    cursor: Cursor


class ListQuery(Request):
    """The query of a list of sessions or runs, as text."""

    limit: Annotated[int, Field(ge=0, le=1000, strict=False)] = 20
    offset: Annotated[LongCounter, Field(strict=False)] = 0
    access_scope: AccessScope = "owned"
    project_id: Identifier | None = None


class SkippedArchive(Response):
    archive: str
    reason: str


class Recovery(Response):
    """The receipt of one. Without an ``archive`` it began with the run's opening."""

    at: Timestamp
    reason: str
    archive: str | None = None
    skipped: list[SkippedArchive]  # newer archives that were no good
    replayed: int  # operations done again for the state they leave
    redone: int  # operations that had no result yet
    matched: int  # of those replayed: bit for bit what they had given before
    mismatched: int
    seconds: float
    notes: list[str]  # what may have made numbers differ
    lost: int = 0  # operations that were acknowledged and are missing from the journal


class RecoveriesResponse(Response):
    """Newest first."""

    training_run_id: str
    recoveries: list[Recovery]
