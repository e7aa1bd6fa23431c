"""Signed URLs: tokens for URLs that need no credential, valid as long as the key that asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from fastapi import HTTPException, Request

from chockstone.api.admission.protocol import recognize_connection
from chockstone.api.context import Context
from chockstone.api.users import Caller

_USER: Final = "user"
_KEY: Final = "key"  # what tokens say of their key, never the key itself


class RevokedUrl(HTTPException):
    def __init__(self) -> None:
        super().__init__(
            403, "the API key that asked for this URL is not valid any more; ask for a new URL with another"
        )


def sign_for(
    context: Context,
    caller: Caller,
    payload: Mapping[str, Any],  # Any: plain JSON
    *,
    expires_at: datetime,
) -> str:
    return context.signer.sign({**payload, _USER: caller.user_id, _KEY: caller.key_mark}, expires_at=expires_at)


def read_signed(context: Context, token: str, request: Request) -> dict[str, Any]:  # Any: plain JSON
    """What was signed. The connection of ``request`` is then no stranger's any more.

    Raises ForeignToken, ExpiredToken, or RevokedUrl when the key is revoked.
    """
    signed = context.signer.read(token, now=context.now())
    if not context.users.is_valid(str(signed.get(_USER)), key_mark=signed.get(_KEY)):
        raise RevokedUrl
    recognize_connection(request.scope)
    return signed
