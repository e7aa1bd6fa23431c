"""Runs: messages to list them and their recoveries."""

from __future__ import annotations

from typing import Literal

from chockstone.wire.messages.checkpoints import Checkpoint, Cursor
from chockstone.wire.messages.schema import Response, Timestamp

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
    # Only for the owner:
    state: Literal["active", "parked", "unloaded", "lost"] | None = None
    created_at: Timestamp | None = None
    steps: int | None = None  # of the optimizer
    last_loss: float | None = None  # of the last forward_backward, mean over the weighted tokens
    parent: str | None = None  # path of the checkpoint of another run that was loaded last


class TrainingRunsResponse(Response):
    training_runs: list[TrainingRun]
    cursor: Cursor


class RunRemoved(Response):
    training_run_id: str
    checkpoints: int  # that were deleted with the run


class SkippedArchive(Response):
    archive: str
    reason: str


class ReplayedOperation(Response):
    sequence: int  # in the run's journal
    command: str
    reason: str


class Recovery(Response):
    """The receipt of one recovery. Without an ``archive`` it began with the run's opening."""

    at: Timestamp
    reason: str
    archive: str | None = None
    skipped: list[SkippedArchive]  # newer archives that were unusable
    replayed: int  # operations replayed for the state they leave
    redone: int  # operations that had no result yet
    matched: int  # replayed operations with bit-identical results
    mismatched: int
    seconds: float
    notes: list[str]  # possible reasons for different numbers
    lost: int = 0  # acknowledged operations that are missing from the journal
    differing: list[ReplayedOperation] = []  # the first 20 of the mismatched ones
    uncompared: list[ReplayedOperation] = []  # the first 20 that were replayed and not compared


class RecoveriesResponse(Response):
    """Newest first."""

    training_run_id: str
    recoveries: list[Recovery]
