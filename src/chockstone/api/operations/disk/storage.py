"""Storage: used bytes and quotas by user and run, and sweeps that apply the retention rules."""

from __future__ import annotations

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.catalog.tables.checkpoint_rows import Usage
from chockstone.engine.storage.sweeper import SweepReport
from chockstone.wire.messages import storage as wire
from chockstone.wire.messages.storage import RetainedCheckpoint, SweepResponse, SweptCheckpoint
from chockstone.wire.paths import check_run_id

routes = Routes(tags=["storage"])


@routes.get("/storage", summary="Show who uses how much storage")
async def storage(context: ContextDep, caller: CallerDep) -> wire.StorageResponse:
    """The caller's usage, or for admins that of all users; largest first."""
    owner = context.scope_of(caller)
    engine, checkpoints, now = context.engine, context.catalog.checkpoints, context.now()
    by_run = await checkpoints.usage_by_run(now, owner=owner)
    by_owner = await checkpoints.usage_by_owner(now)
    runs = [
        wire.RunStorage(
            run_id=run.run_id,
            base_model=run.base_model,
            count=by_run[run.run_id].count,
            size_bytes=by_run[run.run_id].size_bytes,
            quota_bytes=engine.policies.quota_of_run(run.run_id),
        )
        async for run in context.runs_of(owner)
        if run.run_id in by_run
    ]
    users = [
        wire.UserStorage(
            user_id=user_id,
            count=usage.count,
            size_bytes=usage.size_bytes,
            quota_bytes=engine.policies.quota_of_user(user_id),
        )
        for user_id, usage in by_owner.items()
        if owner in (None, user_id)
    ]
    pending = [save for save in await checkpoints.list_pending() if owner in (None, save.owner)]
    scrub = engine.scrub.report()
    return wire.StorageResponse(
        used=_amount(await checkpoints.usage(now=now, owner=owner)),
        trash=_amount(await context.catalog.trash.usage(owner)),
        disk=wire.Disk(
            free_bytes=await engine.storage.free_bytes(), reserve_bytes=context.config.storage.reserve_bytes
        ),
        quota_bytes=engine.policies.quota_of_user(caller.user_id),
        users=sorted(users, key=lambda user: -user.size_bytes),
        runs=sorted(runs, key=lambda run: -run.size_bytes),
        pending=[wire.PendingSave(tinker_path=save.path, since=save.created_at) for save in pending],
        scrub=wire.ScrubReport(checked=scrub.checked, damaged=scrub.damaged, last_at=scrub.last_at),
    )


@routes.post("/sweep", summary="Apply the retention rules")
async def sweep(request: wire.SweepRequest, context: ContextDep, caller: CallerDep) -> wire.SweepResponse:
    """Remove expired checkpoints and those that no rule keeps, of the caller, or for admins of all users.

    With ``dry_run`` only list them.
    """
    owner = context.scope_of(caller)
    if request.run_id is not None:
        await context.run_row(check_run_id(request.run_id), None if owner is None else caller)
    report = await context.engine.sweeper.sweep(dry_run=request.dry_run, run_id=request.run_id, owner=owner)
    return describe(report)


def _amount(usage: Usage) -> wire.Amount:
    return wire.Amount(count=usage.count, size_bytes=usage.size_bytes)


def describe(report: SweepReport) -> SweepResponse:
    return SweepResponse(
        removed=[
            SweptCheckpoint(tinker_path=swept.path, size_bytes=swept.size_bytes, reason=swept.reason)
            for swept in report.removed
        ],
        kept=[RetainedCheckpoint(tinker_path=kept.path, reasons=list(kept.reasons)) for kept in report.kept],
        freed_bytes=report.freed_bytes,
        dry_run=report.dry_run,
    )
