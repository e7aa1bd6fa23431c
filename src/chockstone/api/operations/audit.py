"""The audit: what was done to checkpoints, for their owners and for admins."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Final

from fastapi import Query

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.catalog.tables.audit import AuditRow
from chockstone.wire.messages.audit import AuditEntry, AuditResponse, EventType

routes = Routes(tags=["administration"])
_PREFIXES: Final[dict[EventType, str | None]] = {
    "all": None,
    "checkpoints": "checkpoint_",
    "projects": "project_",
    "teams": "team_",
    "organizations": "organization_",
}


@routes.get("/audit", summary="List what was done to checkpoints, runs and keys")
async def audit(
    context: ContextDep,
    caller: CallerDep,
    event_type: EventType = "all",
    day: Annotated[date | None, Query(description="of UTC")] = None,
    user: Annotated[str | None, Query(max_length=255, description="who did it, or to whose things it was done")] = None,
    run: Annotated[str | None, Query(max_length=255, description="id of a run")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="the newest ones")] = 10_000,
) -> AuditResponse:
    """The caller's entries, or for admins those of all users; oldest first.

    ``user`` chooses among these: a caller who is no admin finds what that user did to the caller's own things.
    """
    await context.engine.audit.flush()
    rows = await context.catalog.audit.list(
        context.scope_of(caller), day=day, prefix=_PREFIXES[event_type], user=user, run_id=run, limit=limit
    )
    return AuditResponse(entries=[_entry(row) for row in rows])


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        timestamp=row.at,
        event=row.event,
        event_details={"owner": row.owner, **row.details},
        model_id=row.run_id,
        tinker_path=row.path,
        purpose=row.purpose,
    )
