"""Runs, as they are listed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from chockstone.wire.checkpoints import Checkpoint, Cursor
from chockstone.wire.schema import Identifier, LongCounter, Request, Response, Timestamp

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
