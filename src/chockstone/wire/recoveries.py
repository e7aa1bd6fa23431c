"""Recoveries: how a run was brought back after its server or worker had died."""

from __future__ import annotations

from chockstone.wire.schema import Response, Timestamp


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
