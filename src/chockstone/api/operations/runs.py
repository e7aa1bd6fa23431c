"""All runs: lists them with their state and load, shows one, and follows checkpoints from run to run."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import orjson
from fastapi import Query

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.status.run_states import STORED, live_states, state_of
from chockstone.api.tinker.runs import finite
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import RowMissing, RunRow
from chockstone.catalog.searches.run_search import RunCursor, RunOrder, RunQuery, RunSummaryRow, SortValue
from chockstone.engine.runs.commands import api_name
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.run import Run
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.operations.runs import (
    LineageResponse,
    LineageRun,
    OperatedRun,
    OperatedRunResponse,
    OperatedRunsResponse,
    OperatedRunState,
    OperationState,
    OperationUnderWay,
    ReplayBacklogReport,
    RunSort,
)
from chockstone.wire.paths import TinkerPath

routes = Routes(prefix="/runs", tags=["runs"])
_OPERATIONS: Final = 1000  # of one run that are shown
_ANCESTORS: Final = 100
_DESCENDANTS: Final = 500
_ORDERS: Final[dict[str, RunOrder]] = {
    each: each for each in ("created", "last_request", "step", "loss", "tokens", "owner", "base_model", "bytes")
}


@routes.get("", summary="List all runs with their state and load")
async def list_all_runs(
    context: ContextDep,
    caller: CallerDep,
    owner: Annotated[str | None, Query(max_length=255)] = None,
    state: Annotated[list[OperatedRunState] | None, Query(description="any of these; repeatable")] = None,
    query: Annotated[str | None, Query(max_length=200, description="words in ids, names and metadata")] = None,
    sort: Annotated[RunSort, Query(description="with a minus sign, the largest or newest first")] = "-created",
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> OperatedRunsResponse:
    """The caller's runs, or for admins those of all users or of ``owner``. Runs without the sorted value come last."""
    scope = context.scope(caller, owner)
    live = live_states(context.engine, scope)
    order = _ORDERS[sort.removeprefix("-")]
    page = await context.catalog.run_search.search(
        RunQuery(
            owner=scope,
            states=None if not state else [stored for each in state for stored in STORED[each]],
            live=live,
            matching=[run_id for run_id, each in live.items() if state and each in state],
            text=query,
            order=order,
            is_descending=sort.startswith("-"),
            limit=limit,
            cursor=None if cursor is None else _decode(cursor, sort, order),
        ),
        now=context.now(),
    )
    return OperatedRunsResponse(
        runs=await _describe_all(context, page.runs),
        total_count=page.total_count,
        cursor=None if page.cursor is None else _encode(page.cursor, sort),
    )


@routes.get("/{run_id}", summary="Show a run with its operations under way")
async def get_operated_run(run_id: str, context: ContextDep, caller: CallerDep) -> OperatedRunResponse:
    """A run of the caller, or for admins any run."""
    await context.run_row(run_id, None if context.is_admin(caller) else caller)
    summary = await context.catalog.run_search.get(run_id, now=context.now())
    if summary is None:
        raise RowMissing(f"run {run_id!r} was deleted a moment ago; list the runs")
    [described] = await _describe_all(context, [summary])
    live = context.engine.runs.get(run_id)
    return OperatedRunResponse(
        **described.model_dump(),
        operations=[] if live is None else _operations(live),
        spec=dict(summary.run.spec),
        optimizer=dict(summary.run.optimizer_config),
        backlog=None
        if live is None
        else ReplayBacklogReport(
            steps=live.backlog.steps, operations=live.backlog.operations, seconds=live.backlog.seconds
        ),
    )


@routes.get("/{run_id}/lineage", summary="Show which checkpoints a run came from, and which runs came from it")
async def get_lineage(run_id: str, context: ContextDep, caller: CallerDep) -> LineageResponse:
    """Ancestors and descendants of a run of the caller, or for admins of any run."""
    is_admin = context.is_admin(caller)
    row = await context.run_row(run_id, None if is_admin else caller)
    await context.engine.progress.flush()  # the parents of live runs
    loaded = context.progress(row).parent
    ancestors, is_at_root = await _ancestors(context, caller, run_id, loaded)
    descendants, are_all = await _descendants(context, None if is_admin else caller.user_id, run_id)
    return LineageResponse(
        run_id=run_id,
        loaded=loaded,
        ancestors=ancestors,
        descendants=descendants,
        is_complete=is_at_root and are_all,
    )


async def _ancestors(
    context: Context, caller: Caller, run_id: str, loaded: str | None
) -> tuple[list[LineageRun], bool]:
    found: list[LineageRun] = []
    seen = {run_id}
    while loaded is not None and len(found) < _ANCESTORS:
        parent_id = TinkerPath.parse(loaded).run_id
        if parent_id in seen:  # two runs loaded each other's checkpoints
            return found, True
        seen.add(parent_id)
        try:
            row = await context.run_row(parent_id, None if context.is_admin(caller) else caller)
        except RowMissing:  # another user's, or deleted
            return [*found, LineageRun(run_id=parent_id, depth=len(found) + 1, is_visible=False)], True
        found.append(_lineage_run(context, row, len(found) + 1))
        loaded = context.progress(row).parent
    return found, loaded is None


async def _descendants(context: Context, owner: str | None, run_id: str) -> tuple[list[LineageRun], bool]:
    found: list[LineageRun] = []
    seen, level = {run_id}, [run_id]
    while level:
        left = _DESCENDANTS - len(found)
        rows = await context.catalog.run_search.list_children(level, owner=owner, limit=left + 1)
        new = [row for row in rows if row.run_id not in seen]
        depth = found[-1].depth + 1 if found else 1
        found += [_lineage_run(context, row, depth) for row in new[:left]]
        if len(new) > left:
            return found, False
        level = [row.run_id for row in new]
        seen.update(level)
    return found, True


def _lineage_run(context: Context, row: RunRow, depth: int) -> LineageRun:
    progress = context.progress(row)
    return LineageRun(
        run_id=row.run_id,
        loaded=progress.parent,
        depth=depth,
        is_visible=True,
        owner=row.owner,
        base_model=row.base_model,
        state=state_of(context.engine, row).state,
        step=progress.steps,
        created_at=row.created_at,
    )


async def _describe_all(context: Context, summaries: Sequence[RunSummaryRow]) -> list[OperatedRun]:
    engine = context.engine
    on_disk = [each.run.run_id for each in summaries if each.run.state != "unloaded"]
    sizes = await engine.journal_sizes([run_id for run_id in on_disk if engine.runs.get(run_id) is None])
    return [_describe(context, each, sizes.get(each.run.run_id, 0)) for each in summaries]


def _describe(context: Context, summary: RunSummaryRow, stored_bytes: int) -> OperatedRun:
    row, live = summary.run, context.engine.runs.get(summary.run.run_id)
    progress, shown = context.progress(row), state_of(context.engine, row)
    waiting = {} if live is None else live.under_way
    return OperatedRun(
        run_id=row.run_id,
        session_id=row.session_id,
        owner=row.owner,
        base_model=row.base_model,
        rank=row.spec["rank"],
        state=shown.state,
        waits_for=shown.waits_for,
        step=progress.steps,
        loss=finite(progress.last_loss),
        tokens=progress.tokens,
        created_at=row.created_at,
        last_request_at=context.last_request(row),
        parent=progress.parent,
        queue_depth=len(waiting),
        oldest_wait_seconds=time.monotonic() - min(waiting.values()) if waiting else None,
        journal_bytes=stored_bytes if live is None else live.journal.size_bytes,
        checkpoints=summary.checkpoints,
        checkpoint_bytes=summary.checkpoint_bytes,
        project_id=row.project_id,
        user_metadata=dict(row.user_metadata),
    )


def _operations(run: Run) -> list[OperationUnderWay]:
    now, monotonic = datetime.now(UTC), time.monotonic()
    shown = list(run.under_way.items())[:_OPERATIONS]
    return [
        OperationUnderWay(
            type=api_name(operation.command),
            seq_id=operation.request.seq_id,
            state=_state_of(operation),
            since=now - timedelta(seconds=monotonic - since),
            waited_seconds=monotonic - since,
        )
        for operation, since in shown
    ]


def _state_of(operation: Operation) -> OperationState:
    if operation.is_released:
        return "writing"
    return "running" if operation.is_begun else "queued"


def _encode(cursor: RunCursor, sort: RunSort) -> str:
    value = cursor.last_value.isoformat() if isinstance(cursor.last_value, datetime) else cursor.last_value
    text = repr(value) if isinstance(value, float) else value  # JSON has no infinity
    return base64.urlsafe_b64encode(orjson.dumps([sort, text, cursor.last_run_id])).decode()


def _decode(text: str, sort: RunSort, order: RunOrder) -> RunCursor:
    try:
        made_for, value, run_id = orjson.loads(base64.urlsafe_b64decode(text))
        if made_for != sort or not isinstance(run_id, str):
            raise ValueError
        return RunCursor(None if value is None else _parse(value, order), run_id)
    except (ValueError, TypeError, binascii.Error) as error:
        raise BadRequest(
            "the cursor is not one that this list gave out for this order; begin at the first page"
        ) from error


def _parse(value: object, order: RunOrder) -> SortValue:
    """Raises ValueError, TypeError."""
    match order, value:
        case (("created" | "last_request"), str() as text):
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                raise ValueError("it names no time zone")
            return moment
        case (("step" | "tokens" | "bytes"), int() as number) if abs(number) < 2**63:
            return number
        case "loss", str() as text:
            return float(text)
        case (("owner" | "base_model"), str() as text):
            return text
    raise ValueError("it is of another type")
