"""Users and keys: creates API keys, which are shown once, and revokes them. For admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import ValidationError

from chockstone.api.context import ContextDep
from chockstone.api.operations import keys as api
from chockstone.api.users import CallerDep
from chockstone.console.forms import read_form
from chockstone.console.views import AdminOnly, ViewsDep
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.operations.keys import CreateKeyRequest, KeysResponse
from chockstone.wire.messages.schema import MAX_INT64, explain

routes = APIRouter(prefix="/users", dependencies=[AdminOnly])


@routes.get("")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    return await views.page(request, "users", found=await api.list_keys(context, caller))


@routes.post("/keys")
async def create_key(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    form = await read_form(request)
    try:
        wanted = CreateKeyRequest(user_id=form.get("user", "").strip(), note=form.get("note", "").strip())
    except ValidationError as error:
        raise BadRequest(explain(error.errors())) from None
    created = await api.create_key(wanted, context, caller, Response())
    # The first key closes the server: then the caller is signed out, and may be no admin any more.
    is_closed_to_caller = not context.is_admin(caller)
    found = KeysResponse(keys=[], is_open=False) if is_closed_to_caller else await api.list_keys(context, caller)
    return await views.part(request, "keys", found=found, created=created, notice=None)


@routes.post("/keys/{key_id}/revoke")
async def revoke_key(
    key_id: Annotated[int, Path(ge=0, le=MAX_INT64)],
    request: Request,
    context: ContextDep,
    caller: CallerDep,
    views: ViewsDep,
) -> Response:
    revoked = await api.revoke_key(key_id, context, caller)
    found = await api.list_keys(context, caller)
    notice = f"Revoked key {revoked.key_id} of {revoked.user_id}. Its user's runs and checkpoints stay."
    return await views.part(request, "keys", found=found, created=None, notice=notice)
