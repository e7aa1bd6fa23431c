"""Samplers: lists sampling sessions with their load, and checks how far vLLM is from the exact log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.backends.protocol import SamplerGap
from chockstone.catalog import SamplerGapRow, SamplerRow
from chockstone.engine.samples.loads import SamplerQueue
from chockstone.engine.samples.requests import SamplerSource
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.wire.messages.operations.samplers import (
    CheckSamplerRequest,
    CheckSamplerResponse,
    SamplerGapReport,
    SamplerLoad,
    SamplersResponse,
)
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import SCHEME, Kind

routes = Routes(tags=["sampling"])


@routes.get("/samplers", summary="List sampling sessions with their load")
async def list_samplers(
    context: ContextDep,
    caller: CallerDep,
    owner: Annotated[str | None, Query(max_length=255)] = None,
    cursor: Annotated[str | None, Query(max_length=255)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> SamplersResponse:
    """The caller's, or for admins those of all users or of ``owner``; newest first, without finished sessions."""
    scope = context.scope(caller, owner)
    rows = await context.catalog.samplers.list_unfinished(scope, after=cursor, limit=limit + 1)
    queues = context.engine.sampling.queues(scope)
    gaps = await _gaps_of(context, rows[:limit])
    return SamplersResponse(
        samplers=[
            _describe(context, row, queues.get(row.sampling_session_id), found)
            for row, found in zip(rows[:limit], gaps, strict=True)
        ],
        queued=sum(queue.queued for queue in queues.values()),
        running=sum(queue.running for queue in queues.values()),
        tokens_per_second=context.engine.token_rates.per_second("sampled", scope),
        cursor=rows[limit - 1].sampling_session_id if len(rows) > limit else None,
        gap_limit=context.engine.gaps.limit,
    )


@routes.post("/samplers/check", summary="Measure how far vLLM is from the exact log-probabilities")
async def check_sampler(request: CheckSamplerRequest, context: ContextDep, caller: CallerDep) -> CheckSamplerResponse:
    """Run the probe now, on each vLLM server of the model, and record what it finds.

    Answers when each server has loaded the adapter and the worker has scored the probe. Refused without vLLM servers.
    A user has one check at a time (429); checks of the same weights share one measurement.
    """
    context.refuse_when_stopping()
    path, source = await _source(context, caller, request.sampler)
    gaps, limit, measured_at = await context.engine.gaps.check(source), context.engine.gaps.limit, context.now()
    return CheckSamplerResponse(
        base_model=source.base_model,
        tinker_path=path,
        gap_limit=limit,
        gaps=[_report(gap, measured_at=measured_at, limit=limit) for gap in gaps],
        served_by=_server_of(gaps, limit),
    )


async def _source(context: Context, caller: Caller, sampler: str) -> tuple[str | None, SamplerSource]:
    """The path, if it has one, and what to sample from."""
    if not sampler.startswith(SCHEME):
        row = await context.sampler(sampler, caller)
        return row.model_path, await context.source(sampler, caller)
    found = (await context.checkpoint(sampler, caller, kinds=(Kind.SAMPLER_WEIGHTS, Kind.WEIGHTS))).row
    context.model(found.base_model)
    return found.path, SamplerSource("", caller.user_id, found.base_model, found.archive, found.seal)


def _server_of(gaps: Sequence[SamplerGap], limit: float | None) -> Literal["vllm", "worker"] | None:
    if not any(gap.was_asked for gap in gaps):
        return None
    return "vllm" if limit is None or any(gap.is_within(limit) for gap in gaps) else "worker"


def _report(gap: SamplerGap | SamplerGapRow, *, measured_at: datetime, limit: float | None) -> SamplerGapReport:
    return SamplerGapReport(
        server=gap.server,
        mean=gap.mean,
        largest=gap.largest,
        tokens=gap.tokens,
        trouble=gap.trouble,
        is_within_limit=None if limit is None else gap.mean is not None and gap.mean <= limit,
        measured_at=measured_at,
    )


async def _gaps_of(context: Context, rows: Sequence[SamplerRow]) -> list[Sequence[SamplerGapRow]]:
    """What is on record of the weights of each sampling session."""
    table, names = context.catalog.sampler_gaps, [ModelName.parse(row.base_model).base for row in rows]
    of_archives = await table.of_archives([row.archive for row in rows if row.archive is not None])
    of_models = await table.of_base_models([name for row, name in zip(rows, names, strict=True) if row.archive is None])
    return [
        of_models.get(name, ()) if row.archive is None else of_archives.get(row.archive, ())
        for row, name in zip(rows, names, strict=True)
    ]


def _describe(
    context: Context, row: SamplerRow, queue: SamplerQueue | None, gaps: Sequence[SamplerGapRow]
) -> SamplerLoad:
    used = context.engine.sampling.uses.get(row.sampling_session_id)
    return SamplerLoad(
        sampling_session_id=row.sampling_session_id,
        session_id=row.session_id,
        owner=row.owner,
        base_model=row.base_model,
        tinker_path=row.model_path,
        is_anonymous=row.archive == ephemeral_name(row.sampling_session_id),
        created_at=row.created_at,
        queued=0 if queue is None else queue.queued,
        running=0 if queue is None else queue.running,
        requests=used.requests,
        prompt_tokens=used.prompt_tokens,
        tokens=used.tokens,
        last_used_at=used.last_used_at,
        gaps=[_report(gap, measured_at=gap.measured_at, limit=context.engine.gaps.limit) for gap in gaps],
    )
