"""Training runs: lists, shows and deletes them, and lists their recoveries."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import Query

from chockstone.api.context import ContextDep
from chockstone.api.lookup import Lookup, LookupDep
from chockstone.api.routes import Routes
from chockstone.api.tinker.checkpoints import describe
from chockstone.api.users import CallerDep
from chockstone.catalog import CheckpointKind, CheckpointRow, RecoveryRow, RowMissing, RunProgress, RunRow
from chockstone.catalog.tables.recoveries import KEPT
from chockstone.wire.messages.checkpoints import Checkpoint, Cursor
from chockstone.wire.messages.runs import (
    AccessScope,
    RecoveriesResponse,
    Recovery,
    ReplayedOperation,
    RunRemoved,
    SkippedArchive,
    TrainingRun,
    TrainingRunsResponse,
)

routes = Routes(prefix="/training_runs", tags=["runs"])
Latest = dict[tuple[str, CheckpointKind], CheckpointRow]


@routes.get("", summary="List training runs")
async def list_runs(
    context: LookupDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=0, le=1000)] = 20,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    access_scope: AccessScope = "owned",
    project_id: Annotated[str | None, Query(max_length=255)] = None,
) -> TrainingRunsResponse:
    page = await context.catalog.runs.list(caller.user_id, limit=limit, offset=offset, project_id=project_id)
    latest = await context.catalog.checkpoints.latest_of([row.run_id for row in page.rows], now=context.now())
    return TrainingRunsResponse(
        training_runs=[_training_run(context, row, latest) for row in page.rows],
        cursor=Cursor(offset=offset, limit=limit, total_count=page.total_count),
    )


@routes.get("/{run_id}", summary="Show a training run")
async def get_run(
    run_id: str, context: LookupDep, caller: CallerDep, access_scope: AccessScope = "owned"
) -> TrainingRun:
    """A run of the caller; with ``accessible`` also another user's, with its public checkpoints only."""
    try:
        row = await context.run_row(run_id, caller)
    except RowMissing:
        if access_scope == "owned":
            raise
        shared = await _public_latest(context, run_id)
        if not shared:
            raise
        row = await context.catalog.runs.get(run_id)
        return _training_run(context, row, shared, is_own=False)
    latest = await context.catalog.checkpoints.latest_of([run_id], now=context.now())
    return _training_run(context, row, latest)


@routes.delete("/{run_id}", summary="Delete a training run")
async def remove_run(run_id: str, context: ContextDep, caller: CallerDep) -> RunRemoved:
    """End a run of the caller if it is live, move its checkpoints to the trash, and delete it."""
    context.refuse_when_stopping()
    row = await context.run_row(run_id, caller)
    count = await context.engine.remove_run(row, by=caller.user_id)
    return RunRemoved(training_run_id=row.run_id, checkpoints=count)


@routes.get("/{run_id}/recoveries", summary="List the recoveries of a run")
async def list_recoveries(
    run_id: str, context: ContextDep, caller: CallerDep, limit: Annotated[int, Query(ge=1, le=KEPT)] = KEPT
) -> RecoveriesResponse:
    """The recoveries of a run after crashes, and whether its numbers were the same. Admins may ask for any run."""
    row = await context.run_row(run_id, None if context.is_admin(caller) else caller)
    rows = await context.catalog.recoveries.list(row.run_id, limit=limit)
    return RecoveriesResponse(training_run_id=row.run_id, recoveries=[receipt_of(each) for each in rows])


async def _public_latest(context: Lookup, run_id: str) -> Latest:
    rows = await context.catalog.checkpoints.list_by_run(run_id, now=context.now())
    return {(row.run_id, row.kind): row for row in reversed(rows) if row.public and row.state == "ready"}


def _training_run(context: Lookup, row: RunRow, latest: Latest, *, is_own: bool = True) -> TrainingRun:
    progress = context.progress(row) if is_own else RunProgress()
    return TrainingRun(
        training_run_id=row.run_id,
        base_model=row.base_model,
        model_owner=row.owner,
        is_lora=row.spec["rank"] > 0,
        lora_rank=row.spec["rank"],
        last_request_time=context.last_request(row),
        corrupted=False,
        last_checkpoint=_described(latest.get((row.run_id, "weights"))),
        last_sampler_checkpoint=_described(latest.get((row.run_id, "sampler_weights"))),
        last_external_checkpoint=_described(latest.get((row.run_id, "external_weights"))),
        user_metadata=dict(row.user_metadata) if is_own else None,
        state=row.state if is_own else None,
        created_at=row.created_at if is_own else None,
        steps=progress.steps,
        last_loss=finite(progress.last_loss),
        parent=progress.parent,
    )


def finite(value: float | None) -> float | None:
    """JSON has no infinity: a loss that diverged is not shown."""
    return value if value is not None and math.isfinite(value) else None


def receipt_of(row: RecoveryRow) -> Recovery:
    return Recovery(
        at=row.at,
        reason=row.reason,
        archive=row.archive,
        skipped=[SkippedArchive(archive=each["archive"], reason=each["reason"]) for each in row.skipped],
        replayed=row.replayed,
        redone=row.redone,
        matched=row.matched,
        mismatched=row.mismatched,
        seconds=row.seconds,
        notes=list(row.notes),
        lost=row.lost,
        differing=[ReplayedOperation.model_validate(each) for each in row.differing],
        uncompared=[ReplayedOperation.model_validate(each) for each in row.uncompared],
    )


def _described(row: CheckpointRow | None) -> Checkpoint | None:
    return None if row is None else describe(row)
