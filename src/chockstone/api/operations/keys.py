"""API keys: lists, creates and revokes them, for admins. A key is in the answer that creates it and nowhere else."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Final

from fastapi import Path, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import LOCAL_USER, CallerDep
from chockstone.catalog import KeyRow, RowMissing
from chockstone.engine.ownership.api_keys import check_user, make_key
from chockstone.engine.ownership.keys_record import KeysRecord
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.operations.keys import (
    CreateKeyRequest,
    CreateKeyResponse,
    KeyEntry,
    KeysResponse,
    RevokeKeyResponse,
)
from chockstone.wire.messages.schema import MAX_INT64

log = logging.getLogger(__name__)
routes = Routes(prefix="/keys", tags=["administration"])
_MOST_KEYS: Final = 10_000  # valid ones
_ACCEPTED: Final = "The server accepts the key from now on; API replicas do within a few seconds."
_CLOSED: Final = (
    "This was the first key, and it closed the server: from now on every request needs a valid key. Runs and "
    f"checkpoints that were made before belong to the user {LOCAL_USER!r}; `chockstone keys create {LOCAL_USER}` on "
    "the server's machine keeps them accessible."
)
_NO_ADMIN: Final = (
    " No user is an admin: restart the server with --admin USER to manage keys over HTTP, or use `chockstone keys`."
)


@routes.get("", summary="List API keys")
async def list_keys(context: ContextDep, caller: CallerDep) -> KeysResponse:
    """All keys with their last characters, for admins. Keys in the settings of the server come first."""
    context.require_admin(caller, "see API keys")
    configured = [
        KeyEntry(user_id=user_id, source="settings", is_admin=user_id in context.config.admins)
        for user_id in sorted(context.config.keys)
    ]
    stored = [_entry(context, row) for row in await context.catalog.keys.list()]
    return KeysResponse(keys=[*configured, *stored], is_open=context.is_open)


@routes.post("", summary="Create an API key")
async def create_key(
    request: CreateKeyRequest, context: ContextDep, caller: CallerDep, response: Response
) -> CreateKeyResponse:
    """Create a key for a user, for admins. Only this answer has the key. The first key of a server closes it."""
    context.require_admin(caller, "create API keys")
    context.refuse_when_stopping()
    try:
        check_user(request.user_id)
    except ValueError as error:
        raise BadRequest(f"no key is created: {error}") from None
    was_open = context.is_open
    keys = await context.catalog.keys.list()
    if sum(not row.is_revoked for row in keys) >= _MOST_KEYS:
        raise BadRequest(f"no key is created: there are {_MOST_KEYS} valid keys already; revoke some first")
    made = make_key()
    row = await context.catalog.keys.add(
        request.user_id, made.digest, hint=made.hint, note=request.note, now=context.now()
    )
    await context.users.refresh(context.catalog.keys.list)
    context.engine.audit("key_created", owner=row.user_id, details=_details(row, by=caller.user_id))
    log.info("key created key=%d user=%s by=%s", row.key_id, row.user_id, caller.user_id)
    try:
        await asyncio.to_thread(KeysRecord(context.config.data).write)
    except OSError as error:  # ``follow_keys`` tries again
        log.warning("it is not recorded that keys are required error=%s", error)
    response.headers["Cache-Control"] = "no-store"
    return CreateKeyResponse(
        key_id=row.key_id,
        user_id=row.user_id,
        key=made.key,
        hint=row.hint,
        note=row.note,
        created_at=row.created_at,
        closed_server=was_open,
        detail=_CLOSED + ("" if context.config.admins else _NO_ADMIN) if was_open else _ACCEPTED,
    )


@routes.delete("/{key_id}", summary="Revoke an API key")
async def revoke_key(
    key_id: Annotated[int, Path(ge=0, le=MAX_INT64)], context: ContextDep, caller: CallerDep
) -> RevokeKeyResponse:
    """Revoke a key for good, for admins. Tokens that were made with it end, too. Keys in settings are revoked there."""
    context.require_admin(caller, "revoke API keys")
    keys = {row.key_id: row for row in await context.catalog.keys.list()}
    row, now = keys.get(key_id), context.now()
    if row is None or not await context.catalog.keys.revoke(key_id, now=now):
        raise RowMissing(f"there is no valid key {key_id}; list the keys")
    await context.users.refresh(context.catalog.keys.list)
    context.engine.audit("key_revoked", owner=row.user_id, details=_details(row, by=caller.user_id))
    log.info("key revoked key=%d user=%s by=%s", row.key_id, row.user_id, caller.user_id)
    return RevokeKeyResponse(key_id=row.key_id, user_id=row.user_id, revoked_at=now)


def _entry(context: Context, row: KeyRow) -> KeyEntry:
    return KeyEntry(
        key_id=row.key_id,
        user_id=row.user_id,
        source="catalog",
        is_admin=row.user_id in context.config.admins,
        hint=row.hint,
        note=row.note,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def _details(row: KeyRow, *, by: str) -> dict[str, object]:
    return {"by": by, "user_id": row.user_id, "key_id": row.key_id, "hint": row.hint}
