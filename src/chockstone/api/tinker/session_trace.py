"""A session's trace: the timeline of its runs and samplers, as a file for ui.perfetto.dev.

Each operation is a slice from its submission to its end, with its wait and its execution inside. Those of this server
come from its recent timings, in memory; older passes and optimizer steps from the runs' histories, which have no
waits. Saves have tracks of their own. Checkpoints, recoveries, samples and the audit are instants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chockstone.api.context import Context
from chockstone.catalog import CheckpointRow, RunRow, SamplerRow, SessionRow
from chockstone.catalog.tables.audit import AuditRow
from chockstone.catalog.tables.recoveries import RecoveryRow
from chockstone.catalog.tables.usage import Use
from chockstone.engine.history.points import LOSS, HistoryPoint
from chockstone.telemetry.timings import WorkTiming
from chockstone.wire.perfetto import Details, PerfettoTrace

MOST_OPERATIONS: Final = 20_000  # of all runs together; of each run, the newest
_MOST_ROWS: Final = 16  # of operations that were queued at the same time
_SHORTEST_SECONDS: Final = 2e-6  # the file has microseconds
_HOUR: Final = timedelta(hours=1)
_UNITS: Final = {"checkpoint": "checkpoints", "storage": "gigabyte-hours"}  # other types are counted in tokens
_SAVES: Final = "save_weights"  # the beginning of their names
_SECONDS: Final = "seconds"  # of a point: how long its operation was computed
_MOST_POINTS: Final = 10_000  # of a history; more than it keeps


@dataclass(frozen=True, slots=True)
class RunTimeline:
    row: RunRow
    last_request: datetime
    checkpoints: Sequence[CheckpointRow] = ()
    recoveries: Sequence[RecoveryRow] = ()
    operations: Sequence[WorkTiming] = ()


@dataclass(frozen=True, slots=True)
class SessionTimeline:
    """All that a trace shows."""

    session: SessionRow
    end: datetime
    runs: Sequence[RunTimeline] = ()
    samplers: Sequence[tuple[SamplerRow, Sequence[WorkTiming]]] = ()
    audit: Sequence[AuditRow] = ()
    uses: Sequence[Use] = ()
    omitted: int = 0  # older operations


async def build_trace(context: Context, session: SessionRow) -> bytes:
    timeline = await _collect(context, session)
    return await asyncio.to_thread(encode_trace, timeline)  # it may have tens of thousands of events


async def _collect(context: Context, session: SessionRow) -> SessionTimeline:
    catalog, now = context.catalog, context.now()
    end = session.finished_at or now
    await context.engine.audit.flush()
    await context.engine.flush_usage()
    rows = await catalog.runs.list_by_session(session.session_id)
    room = max(1, MOST_OPERATIONS // max(1, len(rows)))
    runs, omitted = [], 0
    for row in rows:
        recent = context.engine.timings.of(row.run_id)
        earlier = await context.engine.history.read(row.run_id, limit=_MOST_POINTS)
        operations = [*timings_in(earlier.points, but=recent), *recent]
        omitted += max(0, len(operations) - room)
        runs.append(
            RunTimeline(
                row,
                context.last_request(row),
                await catalog.checkpoints.list_by_run(row.run_id, now=now),
                await catalog.recoveries.list(row.run_id),
                operations[-room:],
            )
        )
    samplers = await catalog.samplers.list_by_session(session.session_id)
    uses = await catalog.usage.list(session.owner, start=session.created_at - _HOUR, end=end + _HOUR)
    return SessionTimeline(
        session,
        end,
        runs,
        [(sampler, context.engine.timings.of(sampler.sampling_session_id)) for sampler in samplers],
        await catalog.audit.list(session.owner),
        [use for use in uses if use.session_id == session.session_id],
        omitted,
    )


def timings_in(points: Iterable[HistoryPoint], *, but: Iterable[WorkTiming]) -> list[WorkTiming]:
    """The executions that a history has and ``but`` has not.

    Points that stand for several have no times of their own.
    """
    known = {timing.sequence for timing in but}
    found = []
    for point in points:
        seconds = point.values.get(_SECONDS)
        if point.sequence is None or point.sequence in known or point.count > 1 or seconds is None:
            continue
        name = "forward_backward" if LOSS in point.values else "optim_step"
        details: dict[str, str | int | float] = {"step": point.step, **point.values, "source": "history"}
        found.append(WorkTiming(name, point.at - seconds, point.at - seconds, point.at, point.sequence, details))
    return found


def encode_trace(timeline: SessionTimeline) -> bytes:
    trace, session = PerfettoTrace(), timeline.session
    process = trace.add_process(f"session {session.session_id}")
    whole = trace.add_track(session.display_name or "session", parent=process)
    details = {"owner": session.owner, "project": session.project_id, "sdk": session.sdk_version}
    how = {} if session.finish_reason is None else {"ended": session.finish_reason, "detail": session.finish_detail}
    omitted = {"omitted_operations": timeline.omitted} if timeline.omitted else {}
    about = {**details, **how, **omitted}
    trace.add_slice(whole, f"session {session.session_id}", session.created_at, timeline.end, about)
    tracks = {run.row.run_id: _add_run(trace, run, process) for run in timeline.runs}
    for sampler, samples in timeline.samplers:
        _add_sampler(trace, sampler, samples, process, timeline.end)
    for entry in timeline.audit:
        if (track := tracks.get(entry.run_id or "")) is not None:
            kept = {"path": entry.path, "purpose": entry.purpose}
            trace.add_instant(track, entry.event, entry.at, {**kept, **_plain(entry.details)})
    _add_usage(trace, timeline.uses, process)
    return trace.encode()


def _add_run(trace: PerfettoTrace, run: RunTimeline, process: int) -> int:
    row = run.row
    track = trace.add_track(f"run {row.run_id}", parent=process)
    about = {"base_model": row.base_model, "rank": row.spec.get("rank"), "state": row.state, "failure": row.failure}
    trace.add_slice(track, row.run_id, row.created_at, run.last_request, about)
    for saved in run.checkpoints:
        kept: Details = {
            "path": saved.path,
            "size_bytes": saved.size_bytes,
            "state": saved.state,
            "damage": saved.damage,
        }
        trace.add_instant(track, f"saved {saved.kind}/{saved.name}", saved.created_at, {**saved.user_metadata, **kept})
    for recovery in run.recoveries:
        facts = {
            "reason": recovery.reason,
            "archive": recovery.archive,
            "replayed": recovery.replayed,
            "redone": recovery.redone,
            "mismatched": recovery.mismatched,
            "lost": recovery.lost,
            "seconds": recovery.seconds,
        }
        trace.add_instant(track, "recovered", recovery.at, facts)
    saves = [each for each in run.operations if each.name.startswith(_SAVES)]
    others = [each for each in run.operations if not each.name.startswith(_SAVES)]
    _add_operations(trace, "operations", others, track)
    _add_operations(trace, "saves", saves, track)
    return track


def _add_operations(trace: PerfettoTrace, title: str, operations: Iterable[WorkTiming], parent: int) -> None:
    for number, row in enumerate(lay_out(operations)):
        track = trace.add_track(title if not number else f"{title}, queued meanwhile {number}", parent=parent)
        for each in row:
            about = {**each.details, **({"sequence": each.sequence} if each.sequence else {})}
            trace.add_slice(track, each.name, _time(each.queued_at), _time(each.ended_at), about)
            if each.begun_at - each.queued_at >= _SHORTEST_SECONDS:
                trace.add_slice(track, "wait", _time(each.queued_at), _time(each.begun_at))
                trace.add_slice(track, "execute", _time(each.begun_at), _time(each.ended_at))


def lay_out(operations: Iterable[WorkTiming]) -> list[list[WorkTiming]]:
    """In rows, so that no two operations of one row overlap: an operation waits while others execute.

    With too many at once, the beginning of a wait is cut off, and ``waited_seconds`` says how long it was.
    """
    rows: list[list[WorkTiming]] = []
    for each in sorted(operations, key=lambda operation: (operation.queued_at, operation.sequence)):
        begun_at = max(each.begun_at, each.queued_at)  # clocks may go back
        placed = replace(each, begun_at=begun_at, ended_at=max(each.ended_at, begun_at + _SHORTEST_SECONDS))
        row = next((row for row in rows if row[-1].ended_at <= placed.queued_at), None)
        if row is None and len(rows) < _MOST_ROWS:
            rows.append([placed])
        elif row is not None:
            row.append(placed)
        else:
            row = min(rows, key=lambda row: row[-1].ended_at)
            row.append(_cut(placed, row[-1].ended_at))
    return rows


def _cut(timing: WorkTiming, start: float) -> WorkTiming:
    waited = timing.begun_at - timing.queued_at
    return replace(
        timing,
        queued_at=start,
        begun_at=max(timing.begun_at, start),
        ended_at=max(timing.ended_at, start + _SHORTEST_SECONDS),
        details={**timing.details, "waited_seconds": round(waited, 6)},
    )


def _add_sampler(
    trace: PerfettoTrace, sampler: SamplerRow, samples: Iterable[WorkTiming], process: int, end: datetime
) -> None:
    track = trace.add_track(f"sampler {sampler.sampling_session_id}", parent=process)
    about = {"base_model": sampler.base_model, "path": sampler.model_path}
    trace.add_slice(track, sampler.sampling_session_id, sampler.created_at, end, about)
    for sample in samples:
        waited, seconds = sample.begun_at - sample.queued_at, sample.ended_at - sample.begun_at
        times = {"waited_seconds": round(max(0.0, waited), 6), "seconds": round(max(0.0, seconds), 6)}
        trace.add_instant(track, sample.name, _time(sample.ended_at), {**sample.details, **times})


def _add_usage(trace: PerfettoTrace, uses: Iterable[Use], process: int) -> None:
    """One counter for each type of use, back at zero after each hour of use."""
    by_type: dict[str, dict[datetime, float]] = {}
    for use in uses:
        hours = by_type.setdefault(use.type, {})
        hours[use.bucket_start] = hours.get(use.bucket_start, 0.0) + use.amount
    for use_type, hours in by_type.items():
        track = trace.add_counter(f"{use_type} ({_UNITS.get(use_type, 'tokens')} per hour)", parent=process)
        for hour, amount in hours.items():
            trace.add_count(track, hour, amount)
            if hour + _HOUR not in hours:
                trace.add_count(track, hour + _HOUR, 0.0)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _plain(details: Mapping[str, Any]) -> dict[str, str | int | float | None]:  # Any: plain JSON
    return {name: value if isinstance(value, str | int | float) else str(value) for name, value in details.items()}
