"""Checkpoints: lists, publishes, expires, verifies, downloads and deletes them.

The owner may do everything; a public checkpoint may be read by every user. A missing checkpoint and another user's
private one get the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from email.utils import format_datetime
from typing import Annotated, Final

from fastapi import Depends, Query, Request, Response

from chockstone.api.bodies import off_loop
from chockstone.api.context import Context, ContextDep
from chockstone.api.downloads.routes import download_url, exported_files
from chockstone.api.lookup import Lookup, LookupDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import CheckpointKind, CheckpointRow, RowMissing
from chockstone.catalog.searches.checkpoint_search import CheckpointCursor, CheckpointQuery
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.checkpoints import (
    ArchiveUrlResponse,
    Checkpoint,
    CheckpointsResponse,
    Cursor,
    ExternalWeightsUrlsResponse,
    NextCheckpoints,
    SearchCheckpointsRequest,
    SearchCheckpointsResponse,
    SetTtlRequest,
    VerifyResponse,
)
from chockstone.wire.paths import NAME_RULE, CheckpointType, Kind, TinkerPath, check_name, check_run_id

routes = Routes(tags=["checkpoints"])
_RUN: Final = "/training_runs/{run_id}/checkpoints"
_ONE: Final = _RUN + "/{kind}/{name}"
_KINDS: Final[dict[CheckpointType, CheckpointKind]] = {
    "training": "weights",
    "sampler": "sampler_weights",
    "external": "external_weights",
}
_URL_LIFETIME: Final = timedelta(hours=1)
_JSON: Final = "application/json"
_BYTES_PER_ENTRY: Final = 500  # of a list, roughly


@routes.get("/checkpoints", response_model=CheckpointsResponse, summary="List checkpoints")
async def list_checkpoints(
    context: LookupDep,
    caller: CallerDep,
    kinds: KnownKindsDep,
    limit: Annotated[int, Query(ge=0, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> Response:
    """The caller's own, of all runs, newest first. An SDK older than 0.28 is not shown external checkpoints."""
    page = await context.catalog.checkpoints.list(
        caller.user_id, limit=limit, offset=offset, now=context.now(), kinds=kinds
    )
    return await _listed(context, page.rows, Cursor(offset=offset, limit=limit, total_count=page.total_count))


@routes.post("/checkpoints/search", response_model=SearchCheckpointsResponse, summary="Search checkpoints")
async def search_checkpoints(
    request: SearchCheckpointsRequest, context: LookupDep, caller: CallerDep, kinds: KnownKindsDep
) -> SearchCheckpointsResponse:
    """The caller's own and, with the owner ``accessible``, published ones of all users; newest first."""
    owner, cursor = request.owner, request.cursor
    if owner.type == "user" and caller.user_id not in owner.owner_urns:
        return SearchCheckpointsResponse(checkpoints=[])
    if request.checkpoint_type is not None:
        kinds = (_KINDS[request.checkpoint_type],)
    query = CheckpointQuery(
        owner=None if owner.type == "accessible" else caller.user_id,
        reader=caller.user_id if owner.type == "accessible" else None,
        kinds=kinds,
        project_ids=request.project_ids,
        user_metadata=request.user_metadata,
        base_models=request.base_models,
        limit=request.limit,
        cursor=None if cursor is None else CheckpointCursor(cursor.last_created_at, int(cursor.last_checkpoint_uuid)),
    )
    page = await context.catalog.checkpoint_search.find(query, now=context.now())
    following = None if page.next_cursor is None else page.rows[-1]
    gaps = await sampler_gaps(context, page.rows)
    return SearchCheckpointsResponse(
        checkpoints=[describe(row, gaps.get(row.archive)) for row in page.rows],
        next_cursor=None
        if following is None
        else NextCheckpoints(last_created_at=following.created_at, last_checkpoint_uuid=str(following.save_id)),
    )


@routes.get(_RUN, response_model=CheckpointsResponse, summary="List the checkpoints of a run")
async def list_checkpoints_of_run(run_id: str, context: LookupDep, caller: CallerDep, kinds: KnownKindsDep) -> Response:
    """All of a run, newest first; of another's run the public ones. Older SDKs are not shown external checkpoints."""
    check_run_id(run_id)
    rows = await context.catalog.checkpoints.list_by_run(run_id, now=context.now())
    seen = [row for row in rows if context.may_read(row, caller)]
    if not seen:
        await context.run_row(run_id, caller)
    return await _listed(context, [row for row in seen if kinds is None or row.kind in kinds])


@routes.get(_ONE, summary="Show a checkpoint")
async def get_checkpoint(run_id: str, kind: str, name: str, context: LookupDep, caller: CallerDep) -> Checkpoint:
    row = await context.readable(TinkerPath.of(run_id, kind, name), caller)
    return describe(row, (await sampler_gaps(context, [row])).get(row.archive))


@routes.delete(_ONE, status_code=204, summary="Delete a checkpoint")
async def delete_checkpoint(run_id: str, kind: str, name: str, context: ContextDep, caller: CallerDep) -> Response:
    """Delete the row, then the archive. Of several requests at once, one succeeds and the others get a 404."""
    row = await context.own_checkpoint(TinkerPath.of(run_id, kind, name), caller)
    return await _delete(context, caller, row)


@routes.delete(_RUN + "/{name}", status_code=204, summary="Delete the checkpoints of a name")
async def delete_by_bare_name(run_id: str, name: str, context: ContextDep, caller: CallerDep) -> Response:
    """Delete by a name without its kind, if only one checkpoint has it."""
    paths = [TinkerPath.of(run_id, kind, name) for kind in Kind]
    await context.run_row(run_id, caller)
    found = await context.catalog.checkpoints.named(run_id, name, now=context.now())
    if len(found) > 1:
        ids = " and ".join(f"{row.kind}/{row.name}" for row in found)
        raise BadRequest(f"{name!r} can mean {ids} of run {run_id!r}; delete each by its full id. Nothing was deleted.")
    if found:
        return await _delete(context, caller, found[0])
    check_name(name)  # refuses ``latest``
    for path in paths:
        await context.refuse_while_written(path)
    raise RowMissing(f"run {run_id!r} has no checkpoint {name!r} of any kind; list its checkpoints")


@routes.post(_ONE + "/publish", status_code=204, summary="Publish a checkpoint")
async def publish(run_id: str, kind: str, name: str, context: ContextDep, caller: CallerDep) -> Response:
    """Let every user of this server read the checkpoint. Idempotent."""
    row = await context.own_checkpoint(TinkerPath.of(run_id, kind, name), caller)
    await context.engine.checkpoints.set_public(row, public=True, by=caller.user_id)
    return Response(status_code=204)


@routes.delete(_ONE + "/publish", status_code=204, summary="Unpublish a checkpoint")
async def unpublish(run_id: str, kind: str, name: str, context: ContextDep, caller: CallerDep) -> Response:
    row = await context.own_checkpoint(TinkerPath.of(run_id, kind, name), caller)
    await context.engine.checkpoints.set_public(row, public=False, by=caller.user_id)
    return Response(status_code=204)


@routes.put(_ONE + "/ttl", status_code=204, summary="Set when a checkpoint expires")
async def set_ttl(
    run_id: str, kind: str, name: str, request: SetTtlRequest, context: ContextDep, caller: CallerDep
) -> Response:
    row = await context.own_checkpoint(TinkerPath.of(run_id, kind, name), caller)
    await context.engine.checkpoints.set_ttl(row, request.ttl_seconds, by=caller.user_id)
    return Response(status_code=204)


@routes.post(_ONE + "/verify", summary="Check every byte of a checkpoint")
async def verify(run_id: str, kind: str, name: str, context: ContextDep, caller: CallerDep) -> VerifyResponse:
    """Read the archive in full, and record whether it is damaged."""
    row = await context.own_checkpoint(TinkerPath.of(run_id, kind, name), caller)
    found = describe(await context.engine.verifier.verify(row))
    return VerifyResponse(state=found.state or "ready", damage=found.damage)


@routes.get(
    _ONE + "/archive",
    status_code=302,
    response_model=ArchiveUrlResponse,
    summary="Get the URL of a checkpoint's archive",
)
async def archive(
    run_id: str, kind: str, name: str, request: Request, context: ContextDep, caller: CallerDep
) -> Response:
    """A URL of the archive that needs no credential and is valid for an hour."""
    path = str(TinkerPath.of(run_id, kind, name))
    row = (await context.checkpoint(path, caller)).row
    expires = context.now() + _URL_LIFETIME
    url = download_url(context, request, caller, row, None, expires)
    context.audit_read(row, caller, purpose="download")
    headers = {"Location": url, "Expires": format_datetime(expires, usegmt=True), "Cache-Control": "no-store"}
    return Response(ArchiveUrlResponse(url=url, expires=expires).encode(), 302, headers, _JSON)


@routes.get(_ONE + "/external_weights_urls", summary="Get the URLs of exported files")
async def external_weights_urls(
    run_id: str, kind: str, name: str, request: Request, context: ContextDep, caller: CallerDep
) -> ExternalWeightsUrlsResponse:
    """A URL for each file of an export that needs no credential and is valid for an hour."""
    path = str(TinkerPath.of(run_id, kind, name))
    row = (await context.checkpoint(path, caller, kinds=(Kind.EXTERNAL_WEIGHTS,))).row
    files = await exported_files(context, row)
    expires = context.now() + _URL_LIFETIME
    context.audit_read(row, caller, purpose="download")
    return ExternalWeightsUrlsResponse(
        urls={file: download_url(context, request, caller, row, file, expires) for file in files}, expires=expires
    )


@routes.api_route(_RUN + "/{anything:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def names_no_checkpoint(run_id: str, anything: str, caller: CallerDep) -> Response:
    raise BadRequest(
        f"{anything[:300]!r} names no checkpoint of a run and nothing to do with one. "
        f"It would be <kind>/<name>, where kind is one of {', '.join(Kind)}. {NAME_RULE}"
    )


async def sampler_gaps(context: Lookup, rows: Sequence[CheckpointRow]) -> Mapping[str, float]:
    """The mean gap of weights by vLLM, by archive, where one was measured."""
    sampled = [row.archive for row in rows if row.kind != "external_weights"]
    return await context.catalog.sampler_gaps.largest_means(sampled) if sampled else {}


def describe(row: CheckpointRow, sampler_gap: float | None = None) -> Checkpoint:
    return Checkpoint.at(
        TinkerPath(row.run_id, Kind(row.kind), row.name),
        time=row.created_at,
        size_bytes=row.size_bytes,
        public=row.public,
        user_metadata=dict(row.user_metadata),
        expires_at=row.expires_at,
        state="damaged" if row.state == "damaged" else "ready",
        damage=row.damage,
        base_model=row.base_model,
        sampler_gap=sampler_gap,
    )


async def _listed(context: Lookup, rows: Sequence[CheckpointRow], cursor: Cursor | None = None) -> Response:
    """Encodes large lists in a thread: a run may have ten thousand checkpoints."""
    gaps = await sampler_gaps(context, rows)

    def encode() -> bytes:
        described = [describe(row, gaps.get(row.archive)) for row in rows]
        return CheckpointsResponse(checkpoints=described, cursor=cursor).encode()

    return Response(await off_loop(encode, size_bytes=_BYTES_PER_ENTRY * len(rows)), media_type=_JSON)


async def _delete(context: Context, caller: Caller, row: CheckpointRow) -> Response:
    if not await context.engine.checkpoints.delete([row], by=caller.user_id):
        raise RowMissing(f"checkpoint {row.path!r} is gone already: it was deleted or replaced a moment ago")
    return Response(status_code=204)


_VERSION_HEADER: Final = "X-Stainless-Package-Version"
_FIRST_WITH_EXTERNAL: Final = (0, 28)  # older ones fail on a list that holds an external checkpoint
_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.|$)", re.ASCII)


def kinds_known_to(version: str | None) -> Sequence[CheckpointKind] | None:
    """The kinds of checkpoints that an SDK of this version can list; None for all of them."""
    found = _VERSION.match(version or "")
    if found is None or (int(found[1]), int(found[2])) >= _FIRST_WITH_EXTERNAL:
        return None
    return "weights", "sampler_weights"


def _kinds(request: Request) -> Sequence[CheckpointKind] | None:
    return kinds_known_to(request.headers.get(_VERSION_HEADER))


KnownKindsDep = Annotated[Sequence[CheckpointKind] | None, Depends(_kinds)]
