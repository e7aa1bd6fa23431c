"""The doctor: messages with the differences between store and catalog."""

from __future__ import annotations

from typing import Literal

from chockstone.wire.messages.schema import Response, Timestamp

ExaminationState = Literal["running", "done", "failed"]


class DoctorFinding(Response):
    kind: str
    title: str  # of its kind, for one
    subject: str  # a checkpoint's path, an archive's name, or a place in the file system
    size_bytes: int
    detail: str
    cause: str
    remedy: str  # names flags of `chockstone doctor`
    is_harmless: bool


class DoctorResponse(Response):
    """The findings are those of the last examination that ended. ``running``: a newer one is in progress."""

    state: ExaminationState
    started_at: Timestamp  # of the newest examination
    examined_at: Timestamp | None = None  # when the findings were found; absent: no examination has ended
    seconds: float | None = None  # that it took
    failure: str | None = None  # why the newest examination failed
    is_healthy: bool | None = None
    checkpoints: int | None = None  # in the catalog
    archives: int | None = None  # in the store
    size_bytes: int | None = None  # of all archives
    counts: dict[str, int] = {}  # findings of each kind
    findings: list[DoctorFinding] = []  # the first thousand
