"""Authentication: exchanges keys for tokens, and tells whose a key is."""

from __future__ import annotations

import zlib

from fastapi import Response

from chockstone.api.context import ContextDep
from chockstone.api.routes import Routes
from chockstone.api.users import ORGANIZATION, CallerDep
from chockstone.wire.messages.credentials import (
    ApiKeyResponse,
    AuthTokenResponse,
    KeyDetails,
    OrganizationDetails,
    UserDetails,
)

routes = Routes(prefix="/auth", tags=["auth"])


@routes.post("/token", summary="Exchange a key for a token")
async def token(context: ContextDep, caller: CallerDep) -> AuthTokenResponse:
    return AuthTokenResponse(jwt=context.users.token(caller))


@routes.get("/apikey/me", summary="Show whose key this is")
async def apikey_me(caller: CallerDep) -> ApiKeyResponse:
    return ApiKeyResponse(
        key_id=zlib.crc32(caller.user_id.encode()),
        name=caller.user_id,
        note="",
        details=KeyDetails(
            org_details=OrganizationDetails(name=ORGANIZATION), user_details=UserDetails(email=caller.user_id)
        ),
    )


@routes.delete("/apikey/me", status_code=204, summary="Log out")
async def delete_apikey(caller: CallerDep) -> Response:
    """Does nothing: only the operator revokes keys. A client that logs out deletes its own copy."""
    return Response(status_code=204)
