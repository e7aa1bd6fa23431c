"""Traces: the timeline of a session, as a file for ui.perfetto.dev.

``session_trace`` builds it on each fetch.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from fastapi import Request, Response

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.signed_urls import ForeignToken
from chockstone.api.tinker.session_trace import build_trace
from chockstone.api.users import CallerDep
from chockstone.wire.messages.sessions import TraceExportResponse

routes = Routes(tags=["sessions"])
_LIFETIME: Final = timedelta(hours=1)


@routes.get("/sessions/{session_id}/trace_export", summary="Export a trace of a session")
async def trace_export(
    session_id: str, request: Request, context: ContextDep, caller: CallerDep
) -> TraceExportResponse:
    """A URL of the trace that needs no credential and is valid for an hour."""
    session = await context.session(session_id, caller)
    token = context.signed_urls.sign(caller, {"trace": session.session_id}, expires_at=context.now() + _LIFETIME)
    return TraceExportResponse(
        status="ready", url=f"{context.base_url(request)}/api/v1/traces/{token}/{session.session_id}.pftrace"
    )


@routes.get("/traces/{token}/{filename}", response_class=Response, summary="Download a trace")
async def trace(token: str, filename: str, request: Request, context: ContextDep) -> Response:
    session_id = context.signed_urls.read(token, request).get("trace")
    if not isinstance(session_id, str):
        raise ForeignToken  # signed for a download
    session = await context.catalog.sessions.get(session_id)
    return Response(
        await build_trace(context, session),
        media_type="application/octet-stream",
        headers={"Content-Disposition": "attachment", "Cache-Control": "no-store"},
    )
