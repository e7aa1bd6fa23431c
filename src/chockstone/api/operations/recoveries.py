"""Recoveries: lists the recoveries of all runs after crashes, each with its receipt."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.tinker.runs import receipt_of
from chockstone.api.users import CallerDep
from chockstone.wire.messages.operations.runs import AllRecoveriesResponse, RecoveryOfRun
from chockstone.wire.messages.schema import MAX_INT64

routes = Routes(tags=["runs"])


@routes.get("/recoveries", summary="List the recoveries of all runs")
async def list_all_recoveries(
    context: ContextDep,
    caller: CallerDep,
    owner: Annotated[str | None, Query(max_length=255)] = None,
    run: Annotated[str | None, Query(max_length=255, description="id of a run")] = None,
    cursor: Annotated[int | None, Query(ge=0, le=MAX_INT64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> AllRecoveriesResponse:
    """The caller's, or for admins those of all users or of ``owner``; newest first."""
    scope = context.scope(caller, owner)
    rows = await context.catalog.recoveries.search(scope, run_id=run, before=cursor, limit=limit + 1)
    page = rows[:limit]
    return AllRecoveriesResponse(
        recoveries=[
            RecoveryOfRun(
                **receipt_of(row).model_dump(), recovery_id=row.recovery_id, run_id=row.run_id, owner=row.owner
            )
            for row in page
        ],
        cursor=page[-1].recovery_id if len(rows) > limit else None,
    )
