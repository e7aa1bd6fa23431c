"""Metrics of a run: reads the history of its steps, follows it live, and takes the series that clients report."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

import orjson
from fastapi import Header, Query
from fastapi import Response as HttpResponse
from fastapi.responses import StreamingResponse

from chockstone.api.context import Context, ContextDep
from chockstone.api.event_streams import PING, PING_SECONDS, encode_event
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.engine.config import Busy
from chockstone.engine.history.points import HistoryPoint, Measurement, is_name
from chockstone.engine.history.step_history import DEFAULT_LIMIT, HistoryPage
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.metrics import (
    MAX_SERIES,
    PostMetricsRequest,
    PostMetricsResponse,
    RunMetricsResponse,
)

routes = Routes(prefix="/training_runs", tags=["runs"])
MAX_LIMIT: Final = 10_000
MAX_STREAM_SECONDS: Final = 86_400.0
_STREAM_PAGE: Final = 1000  # points in one event
_STREAM_WAITING: Final = 4096  # points that wait for a slow reader before its stream ends
_SMALL: Final = 2000  # numbers that are encoded faster than a thread is changed
_COLUMNS: Final = ("position", "step", "at", "source", "count")

After = Annotated[int, Query(ge=0, le=2**53 - 1, description="position of the last point that you have")]
Names = Annotated[str | None, Query(max_length=8192, description="series, separated by commas; all if absent")]


@routes.get(
    "/{run_id}/metrics",
    summary="Read the metrics of a run",
    response_model=None,
    responses={200: {"model": RunMetricsResponse, "content": {"text/csv": {"schema": {"type": "string"}}}}},
)
async def get_metrics(
    run_id: str,
    context: ContextDep,
    caller: CallerDep,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    names: Names = None,
    max_points: Annotated[
        int | None, Query(ge=2, le=MAX_LIMIT, description="merge all points to at most so many, for a chart")
    ] = None,
    file_format: Annotated[Literal["json", "csv"], Query(alias="format")] = "json",
) -> HttpResponse:
    """Points of a run, oldest first, as JSON or CSV. Admins may read any run."""
    page = await read_metrics(context, caller, run_id, after=after, limit=limit, names=names, max_points=max_points)
    encode = to_csv if file_format == "csv" else to_json
    content = encode(page) if _is_small(page.points) else await asyncio.to_thread(encode, page)
    return HttpResponse(content, media_type="text/csv" if file_format == "csv" else "application/json")


@routes.get(
    "/{run_id}/metrics/stream",
    summary="Follow the metrics of a run",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream_metrics(
    run_id: str,
    context: ContextDep,
    caller: CallerDep,
    after: After = 0,
    names: Names = None,
    max_seconds: Annotated[float, Query(ge=0, le=MAX_STREAM_SECONDS, description="how long it stays open")] = 3600.0,
    last_event_id: Annotated[str | None, Header(max_length=32)] = None,
) -> StreamingResponse:
    """Points of a run as they are recorded: server-sent events of type ``points``, each with a JSON list of points.

    The id of an event is the position of its last point. A client that connects again sends it as ``Last-Event-ID``,
    which replaces ``after``. A stream ends when its reader falls behind, and when the server stops.
    """
    context.refuse_when_stopping()
    wanted = _parse_names(names)
    await _check_readable(context, caller, run_id)
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        after = min(int(last_event_id), 2**53 - 1)
    return context.event_streams.open(caller.user_id, _events(context, caller, run_id, after, wanted, max_seconds))


@routes.post("/{run_id}/metrics", summary="Add points to the metrics of a run")
async def post_metrics(
    run_id: str, body: PostMetricsRequest, context: ContextDep, caller: CallerDep
) -> PostMetricsResponse:
    """Add points of your own to a run of yours, such as the reward. Points survive a crash once this is answered."""
    context.refuse_when_stopping()
    row = await context.run_row(run_id, caller)
    await _refuse_when_disk_is_full(context)
    now = context.now().timestamp()
    measured = [Measurement(now if each.at is None else each.at, each.step, each.values) for each in body.points]
    cursor = await context.engine.history.record_client(row.run_id, measured, owner=row.owner)
    return PostMetricsResponse(cursor=cursor)


async def read_metrics(
    context: Context,
    caller: Caller,
    run_id: str,
    *,
    after: int = 0,
    limit: int = DEFAULT_LIMIT,
    names: str | None = None,
    max_points: int | None = None,
) -> HistoryPage:
    """A page of the history of a run that the caller may read. Raises RowMissing, BadRequest."""
    wanted = _parse_names(names)
    await _check_readable(context, caller, run_id)
    return await context.engine.history.read(run_id, after=after, limit=limit, names=wanted, max_points=max_points)


def to_json(page: HistoryPage) -> bytes:
    facts = orjson.dumps({"run_id": page.run_id, "cursor": page.cursor, "has_more": page.has_more})
    return b'%b,"points":%b}' % (facts[:-1], _points_to_json(page.points))


def to_csv(page: HistoryPage) -> bytes:
    """A column for each series, in alphabetical order; a series that a point lacks is empty."""
    names = sorted({name for point in page.points for name in point.values})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_COLUMNS, *names])
    for point in page.points:
        facts = (point.position, point.step, point.at, point.source, point.count)
        table.writerow([*facts, *(point.values.get(name, "") for name in names)])
    return text.getvalue().encode()


async def _events(
    context: Context, caller: Caller, run_id: str, cursor: int, names: frozenset[str] | None, max_seconds: float
) -> AsyncIterator[bytes]:
    history, loop = context.engine.history, asyncio.get_running_loop()
    ends_at = loop.time() + max_seconds
    with history.subscribe(run_id, max_waiting=_STREAM_WAITING) as subscription:
        has_more = True
        while has_more:  # what was recorded before the subscription
            page = await history.read(run_id, after=cursor, limit=_STREAM_PAGE, names=names)
            cursor, has_more = page.cursor, page.has_more
            if page.points:
                yield await points_event(page.points, cursor)
        checked_at = loop.time()
        while (remaining := ends_at - loop.time()) > 0 and not subscription.has_ended:
            news = await subscription.next(timeout_seconds=min(PING_SECONDS, remaining))
            if loop.time() - checked_at >= PING_SECONDS:
                if not context.users.is_valid(caller.user_id, key_mark=caller.key_mark):
                    return
                checked_at = loop.time()
            if news is None:
                yield PING
                continue
            points = [point for point in news.points if point.position > cursor]
            cursor = max(cursor, news.points[-1].position)
            if names is not None:
                points = [kept for point in points if (kept := point.only(names)) is not None]
            if points:
                yield await points_event(points, cursor)


async def points_event(points: Sequence[HistoryPoint], cursor: int) -> bytes:
    """A server-sent event with these points. Many are encoded in a thread: every stream of a run has them to encode."""
    data = _points_to_json(points) if _is_small(points) else await asyncio.to_thread(_points_to_json, points)
    return encode_event(data, event="points", event_id=cursor)


def _points_to_json(points: Sequence[HistoryPoint]) -> bytes:
    """Point by point: the interpreter is held while one is encoded, and a history has megabytes."""
    return b"[%b]" % b",".join(orjson.dumps(point.to_json()) for point in points)


def _is_small(points: Sequence[HistoryPoint]) -> bool:
    return sum(1 + len(point.values) for point in points) <= _SMALL


async def _refuse_when_disk_is_full(context: Context) -> None:
    """No quota counts histories, and the journals of all users need the reserve. Raises Busy."""
    disk = context.status.disk
    with suppress(OSError):  # the write says so
        if (await disk.look()).free_bytes < disk.reserve_bytes:
            raise Busy("the disk has less free space than its reserve, so no metrics are kept; tell the operator")


async def _check_readable(context: Context, caller: Caller, run_id: str) -> None:
    """Raises RowMissing."""
    await context.run_row(run_id, None if context.is_admin(caller) else caller)


def _parse_names(names: str | None) -> frozenset[str] | None:
    """Raises BadRequest."""
    if names is None:
        return None
    listed = [name for name in names.split(",") if name]
    if not listed or len(listed) > MAX_SERIES:
        raise BadRequest(f"names must list 1 to {MAX_SERIES} series, separated by commas")
    if wrong := next((name for name in listed if not is_name(name)), None):
        raise BadRequest(f"{wrong!r:.80} is not the name of a series: use letters, digits and _ . / : -")
    return frozenset(listed)
