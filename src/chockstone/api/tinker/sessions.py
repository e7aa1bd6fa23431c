"""Sessions: creates, finds and finishes client sessions."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from fastapi import Header, HTTPException, Query, Response

from chockstone.api.context import ContextDep
from chockstone.api.lookup import LookupDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import SessionCursor, SessionQuery, SessionRow, SessionSummaryRow, StatusFilter
from chockstone.wire.messages import sessions as wire

routes = Routes(tags=["sessions"])
Scope = Literal["owned", "accessible"]


@routes.post("/create_session", summary="Create a session")
async def create_session(
    request: wire.CreateSessionRequest,
    context: ContextDep,
    caller: CallerDep,
    x_idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> wire.CreateSessionResponse:
    context.refuse_when_stopping()
    row = await context.catalog.sessions.create(
        str(uuid.uuid4()),
        owner=caller.user_id,
        sdk_version=request.sdk_version,
        project_id=request.project_id,
        display_name=request.display_name,
        tags=request.tags,
        user_metadata=request.user_metadata,
        idempotency_key=x_idempotency_key,
        now=context.now(),
    )
    context.engine.presence.saw_session(row.session_id)
    return wire.CreateSessionResponse(session_id=row.session_id)


@routes.post("/session_heartbeat", summary="Keep a session alive")
async def session_heartbeat(
    request: wire.SessionHeartbeatRequest, context: ContextDep, caller: CallerDep
) -> wire.SessionHeartbeatResponse:
    session = await context.session(request.session_id, caller)
    if session.is_finished:
        raise HTTPException(410, f"session {request.session_id!r} is finished")
    context.engine.presence.saw_session(request.session_id)
    return wire.SessionHeartbeatResponse()


@routes.post("/sessions/search", summary="Search sessions")
async def search_sessions(
    request: wire.SearchSessionsRequest, context: LookupDep, caller: CallerDep
) -> wire.SearchSessionsResponse:
    query = SessionQuery(
        owners=[caller.user_id] if _may_see_own(request, caller) else [],
        session_id=request.session_id,
        display_name=request.display_name,
        project_ids=request.project_ids,
        user_metadata=request.user_metadata,
        statuses=None
        if request.statuses is None
        else [StatusFilter(status.type, getattr(status, "reasons", None)) for status in request.statuses],
        limit=request.limit,
        cursor=None
        if request.cursor is None
        else SessionCursor(request.cursor.last_created_at, request.cursor.last_session_id),
    )
    page = await context.catalog.sessions.search(query, now=context.now())
    return wire.SearchSessionsResponse(
        sessions=[_summary(summary) for summary in page.sessions],
        next_cursor=None
        if page.next_cursor is None
        else wire.NextPage(
            last_created_at=page.next_cursor.last_created_at, last_session_id=page.next_cursor.last_session_id
        ),
    )


@routes.get("/sessions", summary="List sessions")
async def list_sessions(
    context: LookupDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=0, le=1000)] = 20,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    access_scope: Scope = "owned",
) -> wire.ListSessionsResponse:
    rows = await context.catalog.sessions.list(caller.user_id, limit=limit, offset=offset)
    return wire.ListSessionsResponse(sessions=[row.session_id for row in rows])


@routes.get("/sessions/{session_id}", summary="Show a session")
async def get_session(
    session_id: str, context: LookupDep, caller: CallerDep, access_scope: Scope = "owned"
) -> wire.SessionResponse:
    session = await context.session(session_id, caller)
    runs = await context.catalog.runs.list_by_session(session_id)
    samplers = await context.catalog.samplers.list_by_session(session_id)
    return wire.SessionResponse(
        training_run_ids=[run.run_id for run in runs],
        sampler_ids=[sampler.sampling_session_id for sampler in samplers],
        user_metadata=dict(session.user_metadata),
        display_name=session.display_name,
    )


@routes.post("/sessions/{session_id}/finish", summary="Finish a session")
async def finish_session(
    session_id: str, request: wire.FinishSessionRequest, context: ContextDep, caller: CallerDep
) -> Response:
    """The first reason is kept. Frees the memory of the session's runs and samplers."""
    session = await context.session(session_id, caller)
    if not session.is_finished:
        await context.catalog.sessions.finish(
            session_id, reason=request.reason.type, detail=request.detail, now=context.now()
        )
    await context.engine.sessions.finish(session_id)  # idempotent, and frees what an earlier failure left
    return Response(status_code=204)


@routes.put("/sessions/{session_id}/project", summary="Set the project of a session")
async def set_project(
    session_id: str, request: wire.SetProjectRequest, context: ContextDep, caller: CallerDep
) -> Response:
    await context.session(session_id, caller)
    await context.catalog.sessions.set_project(session_id, request.project_id)
    return Response(status_code=204)


def _may_see_own(request: wire.SearchSessionsRequest, caller: Caller) -> bool:
    owner = request.owner
    return owner.type != "user" or caller.user_id in owner.owner_urns


def _summary(summary: SessionSummaryRow) -> wire.SessionSummary:
    session = summary.session
    return wire.SessionSummary(
        session_id=session.session_id,
        created_at=session.created_at,
        owner=session.owner,
        project_id=session.project_id or "",
        checkpoints_count=summary.checkpoints_count,
        checkpoint_storage_bytes=summary.checkpoint_storage_bytes,
        status=_status(session),
        display_name=session.display_name,
        user_metadata=dict(session.user_metadata),
    )


def _status(session: SessionRow) -> wire.SessionStatus:
    match session.finish_reason:
        case None:
            return wire.ActiveStatus()
        case "success" | "errored" | "interrupted" as reason:
            return wire.FinishedStatus(reason=wire.ReportedReason(type=reason), detail=session.finish_detail)
        case _:
            return wire.CancelledStatus(detail=session.finish_detail)
