"""Storage: used bytes and quotas, retention policies, sweeps and the trash.

A policy with an unknown field is refused: a misspelt rule would keep or remove the wrong checkpoints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from chockstone.wire.messages.schema import MAX_INT64, CheckpointName, Identifier, Request, Response, Timestamp

GLOBAL_SCOPE = "global"
OWN_SCOPE = "mine"  # of the user who asks
USER_SCOPE = "user:"
RUN_SCOPE = "run:"

_Count = Annotated[int, Field(ge=1, le=MAX_INT64)]
_Name = Annotated[str, Field(min_length=1, max_length=255)]


class _Rules(Request):
    model_config = ConfigDict(extra="forbid")


class KeepBest(_Rules):
    """By a metric in the metadata that a checkpoint was saved with."""

    metric: _Name
    mode: Literal["min", "max"] = "min"
    count: _Count = 1


class Policy(_Rules):
    """No rule keeps everything. What any of the keep rules wants stays."""

    keep_last: _Count | None = None
    keep_every: _Count | None = None  # steps divisible by this
    keep_best: KeepBest | None = None
    ttl_seconds: Annotated[float, Field(gt=0, le=1e12, strict=False)] | None = None
    pinned: Annotated[list[_Name], Field(max_length=10_000)] | None = None
    quota_bytes: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None

    def to_json(self) -> dict[str, Any]:  # Any: plain JSON
        return self.model_dump(exclude_none=True)


class ScopedPolicy(Response):
    scope: str
    policy: dict[str, Any]  # Any: a Policy, as it was set
    changed_at: Timestamp
    changed_by: str
    quota_ceiling_bytes: int | None = None  # an admin's, above which the user may not set their own


class Quotas(Response):
    """Of each user and of each run, as the server was started."""

    user_bytes: int | None = None
    run_bytes: int | None = None


class PoliciesResponse(Response):
    policies: list[ScopedPolicy]
    default: dict[str, Any]  # Any: a Policy: what the server was started with
    default_quotas: Quotas = Quotas()


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


class UndeleteRequest(Request):
    name: CheckpointName | None = Field(default=None, description="another one, where its own is taken")


class UndeleteResponse(Response):
    tinker_path: str
    lost_expiry: bool | None = None  # it had expired, and does not expire any more
    spared_seconds: float  # for so long no rule removes it again


class EmptyTrashResponse(Response):
    freed_bytes: int
    in_use: list[str] | None = None  # paths of what live samplers use, and what therefore stayed
