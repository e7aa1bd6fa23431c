"""Traces: the timeline of a session, as a file for ui.perfetto.dev.

Built from the catalog on each fetch: the session, its runs and samplers, their checkpoints and audit, and the usage
by the hour.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from fastapi import Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.signed_urls import ForeignToken
from chockstone.api.users import CallerDep
from chockstone.catalog import RunRow, SessionRow
from chockstone.wire.messages.sessions import TraceExportResponse
from chockstone.wire.perfetto import Details, PerfettoTrace

routes = Routes(tags=["sessions"])
_LIFETIME: Final = timedelta(hours=1)
_HOUR: Final = timedelta(hours=1)
_UNITS: Final = {"checkpoint": "checkpoints", "storage": "gigabyte-hours"}  # other types are counted in tokens


@routes.get("/sessions/{session_id}/trace_export")
async def trace_export(
    session_id: str, request: Request, context: ContextDep, caller: CallerDep
) -> TraceExportResponse:
    """A URL of the trace that needs no credential and is valid for an hour."""
    session = await context.session(session_id, caller)
    token = context.signed_urls.sign(caller, {"trace": session.session_id}, expires_at=context.now() + _LIFETIME)
    return TraceExportResponse(
        status="ready", url=f"{context.base_url(request)}/api/v1/traces/{token}/{session.session_id}.pftrace"
    )


@routes.get("/traces/{token}/{filename}", response_class=Response)
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


async def build_trace(context: Context, session: SessionRow) -> bytes:
    trace = PerfettoTrace()
    end = session.finished_at or context.now()
    process = trace.add_process(f"session {session.session_id}")
    whole = trace.add_track(session.display_name or "session", parent=process)
    details = {"owner": session.owner, "project": session.project_id, "sdk": session.sdk_version}
    how = {} if session.finish_reason is None else {"ended": session.finish_reason, "detail": session.finish_detail}
    trace.add_slice(whole, f"session {session.session_id}", session.created_at, end, {**details, **how})
    runs = await context.catalog.runs.list_by_session(session.session_id)
    tracks = {run.run_id: trace.add_track(f"run {run.run_id}", parent=process) for run in runs}
    for run in runs:
        await _add_run(context, trace, tracks[run.run_id], run)
    for sampler in await context.catalog.samplers.list_by_session(session.session_id):
        track = trace.add_track(f"sampler {sampler.sampling_session_id}", parent=process)
        about = {"base_model": sampler.base_model, "path": sampler.model_path}
        trace.add_slice(track, sampler.sampling_session_id, sampler.created_at, end, about)
    await _add_audit(context, trace, session, tracks)
    await _add_usage(context, trace, session, process, end)
    return trace.encode()


async def _add_run(context: Context, trace: PerfettoTrace, track: int, run: RunRow) -> None:
    last = context.last_request(run)
    about = {"base_model": run.base_model, "rank": run.spec.get("rank"), "state": run.state, "failure": run.failure}
    trace.add_slice(track, run.run_id, run.created_at, last, about)
    for row in await context.catalog.checkpoints.list_by_run(run.run_id, now=context.now()):
        kept: Details = {"path": row.path, "size_bytes": row.size_bytes, "state": row.state, "damage": row.damage}
        trace.add_instant(track, f"saved {row.kind}/{row.name}", row.created_at, {**row.user_metadata, **kept})


async def _add_audit(context: Context, trace: PerfettoTrace, session: SessionRow, tracks: dict[str, int]) -> None:
    await context.engine.audit.flush()
    for entry in await context.catalog.audit.list(session.owner):
        if (track := tracks.get(entry.run_id or "")) is not None:
            about = {"path": entry.path, "purpose": entry.purpose}
            trace.add_instant(track, entry.event, entry.at, {**about, **_plain(dict(entry.details))})


async def _add_usage(context: Context, trace: PerfettoTrace, session: SessionRow, process: int, end: datetime) -> None:
    """One counter for each type of use, back at zero after each hour of use."""
    await context.engine.flush_usage()
    uses = await context.catalog.usage.list(session.owner, start=session.created_at - _HOUR, end=end + _HOUR)
    by_type: dict[str, dict[datetime, float]] = {}
    for use in uses:
        if use.session_id == session.session_id:
            hours = by_type.setdefault(use.type, {})
            hours[use.bucket_start] = hours.get(use.bucket_start, 0.0) + use.amount
    for use_type, hours in by_type.items():
        track = trace.add_counter(f"{use_type} ({_UNITS.get(use_type, 'tokens')} per hour)", parent=process)
        for hour, amount in hours.items():
            trace.add_count(track, hour, amount)
            if hour + _HOUR not in hours:
                trace.add_count(track, hour + _HOUR, 0.0)


def _plain(details: dict[str, Any]) -> dict[str, str | int | float | None]:  # Any: plain JSON
    return {name: value if isinstance(value, str | int | float) else str(value) for name, value in details.items()}
