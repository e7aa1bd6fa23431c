"""Storage: who keeps how much, what a sweep removes, and what the trash still holds."""

from __future__ import annotations

from pydantic import Field

from chockstone.wire.messages.schema import CheckpointName, Identifier, Request, Response, Timestamp


class Amount(Response):
    count: int
    size_bytes: int


class Disk(Response):
    free_bytes: int | None = None  # absent: the store has no such limit
    reserve_bytes: int  # never written into


class UserStorage(Amount):
    user_id: str
    quota_bytes: int | None = None


class RunStorage(Amount):
    run_id: str
    base_model: str
    quota_bytes: int | None = None


class PendingSave(Response):
    tinker_path: str
    since: Timestamp


class ScrubReport(Response):
    """Of digests that were checked in the background since the server started."""

    checked: int
    damaged: int
    last_at: Timestamp | None = None


class StorageResponse(Response):
    used: Amount
    trash: Amount
    disk: Disk
    quota_bytes: int | None = None  # of the caller
    users: list[UserStorage]
    runs: list[RunStorage]
    pending: list[PendingSave]
    scrub: ScrubReport


class SweepRequest(Request):
    dry_run: bool = True
    run_id: Identifier | None = None


class SweptCheckpoint(Response):
    tinker_path: str
    size_bytes: int
    reason: str


class RetainedCheckpoint(Response):
    tinker_path: str
    reasons: list[str]


class SweepResponse(Response):
    removed: list[SweptCheckpoint]
    kept: list[RetainedCheckpoint]
    freed_bytes: int
    dry_run: bool


class TrashEntry(Response):
    trash_id: int
    tinker_path: str
    size_bytes: int
    reason: str
    discarded_at: Timestamp
    purge_at: Timestamp
    in_use: bool | None = None  # by a live sampler: it is deleted when the sampler's session ends, and not before


class TrashResponse(Response):
    """Newest first."""

    entries: list[TrashEntry]
    keeps_seconds: float  # how long what is removed stays here; 0: it does not


class RestoreRequest(Request):
    name: CheckpointName | None = Field(default=None, description="another one, where its own is taken")


class RestoreResponse(Response):
    tinker_path: str
    lost_expiry: bool | None = None  # it had expired, and does not expire any more
    spared_seconds: float  # for so long no rule removes it again


class EmptyTrashResponse(Response):
    freed_bytes: int
    in_use: list[str] | None = None  # paths of what live samplers use, and what therefore stayed
