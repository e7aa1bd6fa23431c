"""The trash: lists, undeletes and purges removed checkpoints, for as long as the server keeps them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.catalog import RowMissing
from chockstone.wire.messages.schema import MAX_INT64
from chockstone.wire.messages.storage import (
    EmptyTrashResponse,
    TrashEntry,
    TrashResponse,
    UndeleteRequest,
    UndeleteResponse,
)

routes = Routes(prefix="/trash", tags=["storage"])
_LISTED: Final = 10_000
_ALL: Final = 1_000_000


@routes.get("", summary="List the trash")
async def list_trash(context: ContextDep, caller: CallerDep) -> TrashResponse:
    """The caller's trash, or for admins that of all users; the ten thousand newest entries."""
    rows = await context.catalog.trash.list(context.scope_of(caller), limit=_LISTED)
    unused = {row.trash_id for row in await context.engine.checkpoints.purgeable(rows)}
    return TrashResponse(
        keeps_seconds=context.config.storage.trash_seconds,
        entries=[
            TrashEntry(
                trash_id=row.trash_id,
                tinker_path=row.path,
                size_bytes=row.size_bytes,
                reason=row.reason,
                discarded_at=row.discarded_at,
                purge_at=row.purge_at,
                in_use=None if row.trash_id in unused else True,
            )
            for row in rows
        ],
    )


@routes.post("/{trash_id}/restore", name="restore", summary="Undelete a checkpoint")
async def undelete(
    trash_id: Annotated[int, Path(ge=0, le=MAX_INT64)],
    request: UndeleteRequest,
    context: ContextDep,
    caller: CallerDep,
) -> UndeleteResponse:
    absence = f"trash entry {trash_id} is not yours or not there: perhaps it was purged or undeleted; list the trash"
    try:
        entry = await context.catalog.trash.get(trash_id)
    except RowMissing:
        raise RowMissing(absence) from None
    if entry.owner != caller.user_id and not context.is_admin(caller):
        raise RowMissing(absence)
    row = await context.engine.checkpoints.undelete(trash_id, name=request.name, by=caller.user_id)
    return UndeleteResponse(
        tinker_path=row.path,
        lost_expiry=True if entry.checkpoint.expires_at is not None and row.expires_at is None else None,
        spared_seconds=context.config.storage.trash_seconds,
    )


@routes.delete("", summary="Empty the trash")
async def empty_trash(context: ContextDep, caller: CallerDep) -> EmptyTrashResponse:
    """Purge the caller's trash at once, or for admins that of all users. Archives that live samplers use stay."""
    rows = await context.catalog.trash.list(context.scope_of(caller), limit=_ALL)
    unused = {row.trash_id for row in await context.engine.checkpoints.purgeable(rows)}
    freed_bytes = await context.engine.checkpoints.purge(rows)
    in_use = [row.path for row in rows if row.trash_id not in unused]
    return EmptyTrashResponse(freed_bytes=freed_bytes, in_use=in_use or None)
