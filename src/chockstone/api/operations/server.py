"""The server: its version, models, worker, disk, load and settings, and the problems that need a person."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime

import chockstone
from chockstone.api.context import Context, ContextDep
from chockstone.api.operations.replicas import gpu_reports, has_replicas, replica_reports
from chockstone.api.routes import Routes
from chockstone.api.status.effective_settings import effective_settings
from chockstone.api.status.problems import ServerProblem
from chockstone.api.status.queue_load import queue_load
from chockstone.api.status.run_states import count_by_state
from chockstone.api.users import CallerDep
from chockstone.wire.messages.operations.server import (
    DiskReport,
    HeldMemoryReport,
    JournalReport,
    ProblemReport,
    QueueReport,
    ServedModel,
    ServerResponse,
    TokensPerSecond,
    WorkerReport,
)

routes = Routes(tags=["administration"])


@routes.get("/server", summary="Show how the server is")
async def server(context: ContextDep, caller: CallerDep, owner: str | None = None) -> ServerResponse:
    """Version, models, worker, disk, load, and problems that need a person; for admins also the settings.

    Runs, queue, tokens and problems of runs are the caller's own, or for admins those of all users or of ``owner``.
    """
    engine, status, scope = context.engine, context.status, context.scope(caller, owner)
    is_admin = context.is_admin(caller)
    absent = status.readiness.absent_models()
    return ServerResponse(
        version=chockstone.__version__,
        started_at=status.started_at,
        uptime_seconds=status.uptime_seconds,
        is_stopping=engine.is_stopping,
        is_open=context.is_open,
        is_admin=is_admin,
        models=[
            ServedModel(
                name=model.name,
                architecture=model.architecture,
                max_context_length=model.max_context,
                is_loaded=model.name not in absent,
            )
            for model in context.models.values()
        ],
        worker=worker_report(context),
        disk=await _disk(context),
        journal=_journal(context, scope),
        runs=await count_by_state(engine, scope),
        queue=_queue(context, scope),
        tokens_per_second=TokensPerSecond(
            trained=engine.token_rates.per_second("trained", scope),
            sampled=engine.token_rates.per_second("sampled", scope),
        ),
        problems=[_problem(each) for each in await status.problems.current(scope)],
        settings=effective_settings(context.config) if is_admin else None,
    )


def worker_report(context: Context) -> WorkerReport:
    engine = context.engine
    status, environment = engine.worker_status, engine.environment
    died_at = status.last_death_at
    return WorkerReport(
        state=status.phase,
        since=datetime.fromtimestamp(status.since, UTC),
        generation=engine.generation,
        restarts=status.deaths,
        trouble=engine.trouble,
        last_death=status.last_death,
        last_death_at=None if died_at is None else datetime.fromtimestamp(died_at, UTC),
        device=environment.get("device"),
        dtype=environment.get("dtype"),
        base_precision=environment.get("base_precision"),
        threads=environment.get("threads"),
        processes=environment.get("processes"),
        torch=environment.get("torch"),
        memory_bytes=status.memory.resident_bytes,
        gpus=gpu_reports(status.memory),
        held=None if status.memory.held is None else HeldMemoryReport(**asdict(status.memory.held)),
        replicas=replica_reports(engine.membership.members()) if has_replicas(engine.membership) else [],
    )


async def _disk(context: Context) -> DiskReport | None:
    disk = context.status.disk
    try:
        space = await disk.look()
    except OSError:
        return None  # a problem says so
    forecast = disk.forecast(space)
    return DiskReport(
        free_bytes=space.free_bytes,
        total_bytes=space.total_bytes,
        used_bytes=space.used_bytes,
        reserve_bytes=disk.reserve_bytes,
        bytes_per_day=forecast.bytes_per_day,
        full_in_days=forecast.full_in_days,
    )


def _journal(context: Context, owner: str | None) -> JournalReport:
    engine = context.engine
    return JournalReport(
        mode=context.config.durability.journal,
        size_bytes=sum(run.journal.size_bytes for run in engine.runs if owner in (None, run.owner)),
        trouble=engine.journal_trouble,
    )


def _queue(context: Context, owner: str | None) -> QueueReport:
    load = queue_load(context.engine, owner, now=time.monotonic())
    return QueueReport(operations=load.operations, samples=load.samples, oldest_wait_seconds=load.oldest_wait_seconds)


def _problem(found: ServerProblem) -> ProblemReport:
    assert found.since is not None, "a listed problem is dated"
    return ProblemReport(
        kind=found.kind,
        what=found.what,
        to_do=found.to_do,
        since=found.since,
        owner=found.owner,
        run_id=found.run_id,
        tinker_path=found.path,
    )
