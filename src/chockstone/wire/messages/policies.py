"""Policies: what is kept of a run, of a user's runs, or of everyone's, and how much of it.

A field that is no rule is refused: a rule that was misspelt would keep or remove the wrong things.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from chockstone.wire.messages.schema import MAX_INT64, Request, Response, Timestamp

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
