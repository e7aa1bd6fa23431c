"""Aliases: names that users point at a checkpoint or a base model. Admins set those that hold for all users."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Final

from fastapi import Query

from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import Caller, CallerDep
from chockstone.catalog import SERVER_WIDE, AliasRow, RowMissing
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.operations.aliases import (
    AliasEntry,
    AliasesResponse,
    AliasHistoryResponse,
    SetAliasRequest,
    UndoAliasRequest,
)
from chockstone.wire.paths import SCHEME, Kind, TinkerPath

routes = Routes(prefix="/aliases", tags=["aliases"])
_MOST_ALIASES: Final = 100  # of one user, and of the server
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_KINDS: Final = (Kind.SAMPLER_WEIGHTS, Kind.WEIGHTS)


@routes.get("", summary="List aliases")
async def list_aliases(context: ContextDep, caller: CallerDep) -> AliasesResponse:
    """The caller's own aliases and the server-wide ones, by name. The caller's own come before those of the server."""
    rows = await context.catalog.aliases.list(caller.user_id, SERVER_WIDE)
    return AliasesResponse(aliases=[_entry(row, await _problem(context, caller, row)) for row in rows])


@routes.put("/{name}", summary="Set an alias")
async def set_alias(name: str, request: SetAliasRequest, context: ContextDep, caller: CallerDep) -> AliasEntry:
    """Create the alias, or switch it. The next request that names the alias gets the new target.

    With ``store``, the conversations of each user with the target are stored in the user's own list.
    """
    owner = _owner(context, caller, server_wide=request.server_wide)
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name[:300]!r} cannot name an alias: a name has 1 to 128 characters out of A-Z a-z 0-9 . _ - "
            f"and begins with a letter or a digit"
        )
    if name in context.models:
        raise BadRequest(f"{name!r} is a base model of this server; choose another name for the alias")
    await _check_target(context, caller, request.target, server_wide=request.server_wide)
    known = {row.name for row in await context.catalog.aliases.list(owner)}
    if name not in known and len(known) >= _MOST_ALIASES:
        raise BadRequest(f"there are {_MOST_ALIASES} aliases already; remove one with `chockstone alias rm`")
    row = await context.catalog.aliases.set(
        owner, name, request.target, by=caller.user_id, now=context.now(), stores=request.store
    )
    return _noted(context, caller, row, "alias_set")


@routes.get("/{name}/history", summary="Show the history of an alias")
async def alias_history(
    name: str,
    context: ContextDep,
    caller: CallerDep,
    server_wide: bool = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AliasHistoryResponse:
    """Every change of the alias, newest first, its removal too."""
    owner = SERVER_WIDE if server_wide else caller.user_id
    rows = await context.catalog.aliases.history(owner, name, limit=limit)
    if not rows:
        raise RowMissing(f"there is no alias {name[:300]!r}; `chockstone alias ls` shows yours and those of the server")
    return AliasHistoryResponse(changes=[_entry(row) for row in rows])


@routes.post("/{name}/undo", summary="Undo the last change of an alias")
async def undo_alias(name: str, request: UndoAliasRequest, context: ContextDep, caller: CallerDep) -> AliasEntry:
    """Go back to the target before the last change. Another undo goes back one change more.

    The earlier target must still exist; otherwise nothing is changed.
    """
    owner = _owner(context, caller, server_wide=request.server_wide)
    check = partial(_check_target, context, caller, server_wide=request.server_wide)
    row = await context.catalog.aliases.undo(owner, name, by=caller.user_id, now=context.now(), check=check)
    return _noted(context, caller, row, "alias_undone")


@routes.delete("/{name}", summary="Remove an alias")
async def remove_alias(name: str, context: ContextDep, caller: CallerDep, server_wide: bool = False) -> AliasEntry:
    """Remove the name. What it pointed at stays, and an undo brings the alias back."""
    owner = _owner(context, caller, server_wide=server_wide)
    row = await context.catalog.aliases.remove(owner, name, by=caller.user_id, now=context.now())
    return _noted(context, caller, row, "alias_removed")


def _owner(context: Context, caller: Caller, *, server_wide: bool) -> str:
    if not server_wide:
        return caller.user_id
    context.require_admin(caller, "change server-wide aliases")
    return SERVER_WIDE


async def _check_target(context: Context, caller: Caller, target: str, *, server_wide: bool) -> None:
    """Raises BadRequest or RowMissing for what the users of the alias could not sample from."""
    if not target.startswith(SCHEME):
        context.model(target)
        return
    row = (await context.checkpoint(target, caller, kinds=_KINDS)).row
    context.model(row.base_model)
    if row.expires_at is not None:
        raise BadRequest(
            f"{row.path!r} expires at {row.expires_at:%Y-%m-%d %H:%M} UTC, and the alias would point at nothing then; "
            f"remove its expiry first with `chockstone checkpoints ttl`"
        )
    if server_wide and not row.public:
        raise BadRequest(
            f"{row.path!r} is private: a server-wide alias needs a checkpoint that all users may read. "
            f"Publish it first with `chockstone checkpoints publish`"
        )


async def _problem(context: Context, caller: Caller, row: AliasRow) -> str | None:
    target = row.target or ""
    try:
        if not target.startswith(SCHEME):
            context.model(target)
        elif not (path := TinkerPath.parse(target)).is_latest:
            await context.readable(path, caller)
    except (BadRequest, RowMissing) as error:
        return str(error)
    return None


def _noted(context: Context, caller: Caller, row: AliasRow, event: str) -> AliasEntry:
    """With an entry in the audit of the caller."""
    details = {
        "by": caller.user_id,
        "name": row.name,
        "target": row.target,
        "store": row.stores,
        "server_wide": row.owner == SERVER_WIDE,
    }
    path = row.target if (row.target or "").startswith(SCHEME) else None
    context.engine.audit(event, owner=caller.user_id, path=path, details=details)
    return _entry(row)


def _entry(row: AliasRow, problem: str | None = None) -> AliasEntry:
    return AliasEntry(
        name=row.name,
        server_wide=row.owner == SERVER_WIDE,
        target=row.target,
        store=row.stores,
        revision=row.revision,
        action=row.action,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
        problem=problem,
    )
