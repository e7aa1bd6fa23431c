"""Samplers: lists sampling sessions with their load."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.catalog import SamplerRow
from chockstone.engine.samples.loads import SamplerQueue
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.wire.messages.operations.samplers import SamplerLoad, SamplersResponse

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
    return SamplersResponse(
        samplers=[_describe(context, row, queues.get(row.sampling_session_id)) for row in rows[:limit]],
        queued=sum(queue.queued for queue in queues.values()),
        running=sum(queue.running for queue in queues.values()),
        tokens_per_second=context.engine.token_rates.per_second("sampled", scope),
        cursor=rows[limit - 1].sampling_session_id if len(rows) > limit else None,
    )


def _describe(context: Context, row: SamplerRow, queue: SamplerQueue | None) -> SamplerLoad:
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
    )
