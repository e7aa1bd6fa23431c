"""Overview: what runs now, the load, the worker, the disk, the last recoveries, and what needs a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.recoveries import list_all_recoveries
from chockstone.api.operations.runs import list_all_runs
from chockstone.api.operations.server import server
from chockstone.api.users import Caller, CallerDep
from chockstone.console.live import LiveDep, Parts
from chockstone.console.sparklines import LossLine
from chockstone.console.views import Views, ViewsDep
from chockstone.wire.messages.operations.runs import OperatedRun, RecoveryOfRun
from chockstone.wire.messages.operations.server import ServerResponse

routes = APIRouter()
PARTS: Final = ("overview_problems", "overview_stats", "overview_runs", "overview_side")
_RUNS: Final = 10
_RECOVERIES: Final = 5


@dataclass(frozen=True, slots=True)
class OverviewPage:
    server: ServerResponse
    runs: Sequence[OperatedRun]  # the last used first
    lines: Mapping[str, LossLine]  # by run
    recoveries: Sequence[RecoveryOfRun]
    has_runs: bool  # of any state

    @property
    def disk_share(self) -> float:
        """Of the disk that is used."""
        disk = self.server.disk
        return 0.0 if disk is None or not disk.total_bytes else 1 - disk.free_bytes / disk.total_bytes

    @property
    def disk_kind(self) -> str:
        disk = self.server.disk
        if disk is None or disk.free_bytes <= disk.reserve_bytes:
            return "bad"
        return "warn" if disk.full_in_days is not None and disk.full_in_days < 7 else ""


@routes.get("")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    overview = await look(context, caller, views)
    url = context.base_url(request)
    return await views.page(request, "overview", live="/live/overview", overview=overview, url=url)


@routes.get("/live/overview")
async def follow(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep, live: LiveDep) -> Response:
    async def render() -> Parts:
        overview, url = await look(context, caller, views), context.base_url(request)
        return {name: await views.piece(request, name, overview=overview, url=url) for name in PARTS}

    return live.stream(request, caller, render, key="overview")


async def look(context: Context, caller: Caller, views: Views) -> OverviewPage:
    found = await server(context, caller)
    runs = (await list_all_runs(context, caller, sort="-last_request", limit=_RUNS)).runs
    recoveries = (await list_all_recoveries(context, caller, limit=_RECOVERIES)).recoveries
    lines = {run.run_id: await views.sparklines.of(run.run_id, step=run.step) for run in runs}
    return OverviewPage(found, runs, lines, recoveries, has_runs=any(found.runs.values()))
