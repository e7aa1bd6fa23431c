"""Billing: used tokens and stored bytes, without prices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import Query
from pydantic import AwareDatetime

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog.tables.usage import Use
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages import billing as wire

routes = Routes(prefix="/billing/usage", tags=["administration"])
_HOUR: Final = timedelta(hours=1)
_LONGEST: Final = timedelta(days=14)
_PAGE: Final = 1000


@routes.get("/events", summary="List what was used")
async def usage_events(
    context: ContextDep, caller: CallerDep, starting_on: AwareDatetime, ending_before: AwareDatetime
) -> wire.UsageResponse:
    """Usage by the hour, oldest first: the caller's, or for admins that of all users."""
    start, end = _window(starting_on, ending_before, context.now())
    await context.engine.flush_usage()
    uses = await context.catalog.usage.list(context.scope_of(caller), start=start, end=end)
    ordered = sorted(uses, key=lambda use: (use.bucket_start, -use.amount))
    return wire.UsageResponse(
        data=[_event(use) for use in ordered],
        sessions=await _sessions(context, caller, {use.session_id for use in uses if use.session_id is not None}),
    )


@routes.get("/checkpoints/current", summary="Show the stored checkpoints of each project")
async def current_checkpoints(
    context: ContextDep, caller: CallerDep, project_id: Annotated[str | None, Query(max_length=255)] = None
) -> wire.StorageUsageResponse:
    """Stored bytes by project and user, largest first: the caller's, or for admins those of all users.

    Bytes that copies share are counted once, for the first owner.
    """
    owner = context.scope_of(caller)
    by_run = await context.engine.checkpoints.real_usage_by_run()
    amounts: dict[tuple[str | None, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    async for run in context.runs_of(owner, project_id=project_id):
        if (usage := by_run.get(run.run_id)) is not None:
            count, size_bytes = amounts[run.project_id, run.owner]
            amounts[run.project_id, run.owner] = (count + usage.count, size_bytes + usage.size_bytes)
    items = [
        wire.StorageUsageItem(
            project_id=project,
            org_user_urn=user_id,
            user_name=user_id,
            checkpoint_count=count,
            size_bytes=size_bytes,
            size_gigabytes=size_bytes / 1e9,
        )
        for (project, user_id), (count, size_bytes) in amounts.items()
    ]
    return wire.StorageUsageResponse(data=sorted(items, key=lambda item: -item.size_bytes))


def _window(start: datetime, end: datetime, now: datetime) -> tuple[datetime, datetime]:
    for name, moment in (("starting_on", start), ("ending_before", end)):
        if not _begins_an_hour(moment):
            raise BadRequest(f"{name}={moment.isoformat()!r} is not the beginning of an hour of UTC")
    if not timedelta(0) < end - start <= _LONGEST:
        raise BadRequest("ending_before must be later than starting_on, by 14 days at most")
    if start > now:
        raise BadRequest(f"starting_on={start.isoformat()!r} is in the future")
    return start.astimezone(UTC), end.astimezone(UTC)


def _begins_an_hour(moment: datetime) -> bool:
    try:
        return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0) == moment
    except OverflowError:  # outside the years that UTC has in Python
        return False


def _event(use: Use) -> wire.UsageEvent:
    return wire.UsageEvent(
        bucket_start=use.bucket_start,
        bucket_end=use.bucket_start + _HOUR,
        base_model=use.base_model or None,
        user_id=use.owner,
        user_name=use.owner,
        session_id=use.session_id,
        project_id=use.project_id,
        event_info=_info(use),
    )


def _info(use: Use) -> wire.UseInfo:
    match use.type:
        case "training":
            return wire.TrainingUse(token_count=round(use.amount))
        case "sampling_prefill":
            return wire.PrefillUse(cached=use.cached, token_count=round(use.amount))
        case "sampling_sample":
            return wire.SampleUse(token_count=round(use.amount))
        case "checkpoint":
            return wire.CheckpointUse(count=round(use.amount))
        case "storage":
            return wire.StorageUse(gigabyte_hours=use.amount)


async def _sessions(context: Context, caller: Caller, wanted: Iterable[str]) -> dict[str, wire.UsageSession]:
    """Searches from the newest session on, because the usage is of the last days."""
    missing = set(wanted)
    found: dict[str, wire.UsageSession] = {}
    offset = 0
    while missing:
        rows = await context.catalog.sessions.list(context.scope_of(caller), limit=_PAGE, offset=offset)
        for row in rows:
            if row.session_id in missing:
                missing.discard(row.session_id)
                found[row.session_id] = wire.UsageSession(user_metadata=dict(row.user_metadata) or None)
        offset += len(rows)
        if len(rows) < _PAGE:
            break
    return found
