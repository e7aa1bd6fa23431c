"""Run: one run with its curves, timing, operations, checkpoints, recoveries, lineage and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Annotated, Any, Final, Self

import orjson
from fastapi import APIRouter, Query, Request, Response
from markupsafe import escape

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.run_metrics import points_event, read_metrics, to_csv, to_json
from chockstone.api.operations.runs import get_lineage, get_operated_run
from chockstone.api.tinker.runs import list_recoveries
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import CheckpointRow
from chockstone.console.live import LiveDep, Parts
from chockstone.console.views import Views, ViewsDep
from chockstone.engine.history.points import HistoryPoint
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.history.subscriptions import Subscription
from chockstone.wire.messages.operations.runs import LineageResponse, OperatedRunResponse
from chockstone.wire.messages.runs import Recovery

routes = APIRouter()
_POINTS: Final = 2000  # of a chart: more than it has pixels
_SHOWN_CHECKPOINTS: Final = 12
_SHOWN_OPERATIONS: Final = 20
PARTS: Final = ("run_head", "run_stats", "run_operations", "run_checkpoints", "run_recoveries", "run_lineage")
After = Annotated[int, Query(ge=0, le=2**53 - 1)]


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds of the newest operations of one kind."""

    label: str
    middle: float
    slowest: float
    share: float  # of a whole step, from 0 to 1


@dataclass(frozen=True, slots=True)
class RunView:
    run: OperatedRunResponse
    recoveries: Sequence[Recovery]
    checkpoints: Sequence[CheckpointRow]  # the newest
    checkpoint_count: int
    lineage: LineageResponse
    timings: Sequence[StepTiming]
    tokens_per_second: float | None  # of forward and backward passes
    last_loss: float | None  # mean over the weighted tokens, as the chart shows it

    @property
    def operations(self) -> Sequence[Any]:  # Any: OperationUnderWay
        return self.run.operations[:_SHOWN_OPERATIONS]

    @property
    def is_in_memory(self) -> bool:
        return self.run.state not in ("parked", "unloaded", "lost")

    @property
    def settings(self) -> list[tuple[str, str]]:
        optimizer = {name: value for name, value in self.run.optimizer.items() if name != "type"}  # the spec has it
        return [*flatten(self.run.spec), *flatten(optimizer, "optimizer.")]


@routes.get("/runs/{run_id}")
async def show(run_id: str, request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    view = await look(context, caller, views, run_id)
    marks = orjson.dumps(marks_of(view)).decode()
    return await views.page(request, "run", section="runs", live=f"/live/runs/{run_id}", view=view, marks=marks)


@routes.get("/runs/{run_id}/points")
async def points(
    run_id: str, context: ContextDep, caller: CallerDep, after: After = 0, names: Annotated[str | None, Query()] = None
) -> Response:
    """For charts: all points, merged to as many as a chart can show."""
    page = await read_metrics(context, caller, run_id, after=after, names=names, max_points=_POINTS)
    return Response(await asyncio.to_thread(to_json, page), media_type="application/json")


@routes.get("/runs/{run_id}/points.csv")
async def points_csv(run_id: str, context: ContextDep, caller: CallerDep) -> Response:
    page = await read_metrics(context, caller, run_id, limit=20_000)
    headers = {"Content-Disposition": f'attachment; filename="{_file_name(run_id)}.csv"'}
    return Response(await asyncio.to_thread(to_csv, page), media_type="text/csv", headers=headers)


@routes.get("/live/runs/{run_id}")
async def follow(
    run_id: str,
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
    live: LiveDep,
    after: After = 0,
) -> Response:
    await get_operated_run(run_id, context, caller)  # refuses strangers before the stream begins

    async def render() -> Parts:
        view = await look(context, caller, views, run_id)
        parts = {name: await views.piece(request, name, view=view) for name in PARTS}
        return {**parts, "run_marks": marks_part(view)}

    feed = PointFeed(context.engine.history, run_id, after=after)
    return live.stream(request, caller, render, key=("run", run_id), feed=feed)


async def look(context: Context, caller: Caller, views: Views, run_id: str) -> RunView:
    run = await get_operated_run(run_id, context, caller)
    recoveries = (await list_recoveries(run_id, context, caller, limit=50)).recoveries
    checkpoints = await context.catalog.checkpoints.list_by_run(run_id, now=context.now())
    recent = await views.recent_points.of(run_id, seen=(run.step, run.last_request_at))
    newest = [point for point in recent if point.source == "server" and point.count == 1]
    losses = [point.values["loss"] for point in newest if "loss" in point.values]
    return RunView(
        run=run,
        recoveries=recoveries,
        checkpoints=checkpoints[:_SHOWN_CHECKPOINTS],
        checkpoint_count=len(checkpoints),
        lineage=await get_lineage(run_id, context, caller),
        timings=timings_of(newest),
        tokens_per_second=_tokens_per_second(newest),
        last_loss=losses[-1] if losses else None,
    )


class PointFeed:
    """First the points after the last one that the page has, then each as it is recorded."""

    def __init__(self, history: StepHistory, run_id: str, *, after: int) -> None:
        self._history = history
        self._run_id = run_id
        self._after = after
        self._subscription: Subscription | None = None  # inside the context
        self._is_behind = after > 0  # a page that has no points fetches them by itself

    @property
    def has_ended(self) -> bool:
        return self._subscription is not None and self._subscription.has_ended

    async def next(self, *, timeout_seconds: float) -> bytes | None:
        if self._is_behind:
            self._is_behind = False
            page = await self._history.read(self._run_id, after=self._after, max_points=_POINTS)
            return await self._event(page.points)
        assert self._subscription is not None, "it is open inside its context"
        news = await self._subscription.next(timeout_seconds=timeout_seconds)
        return None if news is None else await self._event(news.points)

    async def _event(self, points: Sequence[HistoryPoint]) -> bytes | None:
        fresh = [point for point in points if point.position > self._after]
        if not fresh:
            return None
        self._after = fresh[-1].position
        return await points_event(fresh, self._after)

    def __enter__(self) -> Self:
        self._subscription = self._history.subscribe(self._run_id)
        return self

    def __exit__(self, *_: object) -> None:
        if self._subscription is not None:
            self._subscription.close()


def marks_of(view: RunView) -> list[dict[str, Any]]:  # Any: plain JSON
    """What happened to the run, for its charts: recoveries by time, checkpoints by step."""
    crashes = [{"kind": "recovery", "at": each.at.timestamp(), "label": each.reason} for each in view.recoveries]
    saves = [
        {"kind": "checkpoint", "at": row.created_at.timestamp(), "step": row.step, "label": row.name}
        for row in view.checkpoints
        if row.kind == "weights"
    ]
    return [*crashes, *saves]


def marks_part(view: RunView) -> str:
    """The marks as markup, which the page's script puts in place as it is."""
    return str(escape(orjson.dumps(marks_of(view)).decode()))


def timings_of(points: Sequence[HistoryPoint]) -> list[StepTiming]:
    passes = [p.values["seconds"] for p in points if "seconds" in p.values and "tokens" in p.values]
    steps = [p.values["seconds"] for p in points if "seconds" in p.values and "tokens" not in p.values]
    kinds = [(label, found) for label, found in (("forward_backward", passes), ("optim_step", steps)) if found]
    whole = sum(fmean(found) for _, found in kinds) or 1.0
    return [StepTiming(label, median(found), max(found), fmean(found) / whole) for label, found in kinds]


def _tokens_per_second(points: Sequence[HistoryPoint]) -> float | None:
    timed = [point.values for point in points if "seconds" in point.values and "tokens" in point.values]
    seconds = sum(values["seconds"] for values in timed)
    return sum(values["tokens"] for values in timed) / seconds if seconds else None


def flatten(found: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:  # Any: plain JSON
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, Mapping):
            rows += flatten(value, f"{prefix}{name}.")
        elif value is not None:
            rows.append((f"{prefix}{name}", value if isinstance(value, str) else orjson.dumps(value).decode()))
    return rows


def _file_name(run_id: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "-" for each in run_id)[:120]
