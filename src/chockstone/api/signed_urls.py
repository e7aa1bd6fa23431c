"""Signed URLs: expiring tokens for URLs that need no credential.

A token is a JSON Web Token signed with HMAC-SHA-256. It is valid until it expires, and as long as the API key
that asked for it is valid.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import jwt
from fastapi import HTTPException, Request

from chockstone.api.admission.protocol import recognize_connection
from chockstone.api.users import Caller, UserDirectory

_PURPOSE: Final = b"chockstone: signed URLs, 2"  # users' tokens are signed with the secret itself
_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "url"
_AUDIENCE_CLAIM: Final = "aud"
_EXPIRY_CLAIM: Final = "exp"
_USER: Final = "user"
_KEY: Final = "key"  # mark of the API key, never the key itself


class ForeignToken(HTTPException):
    def __init__(self) -> None:
        super().__init__(403, "the URL was not signed by this server, or was changed since; ask for a new one")


class ExpiredToken(HTTPException):
    def __init__(self, expired_at: int) -> None:
        at = datetime.fromtimestamp(expired_at, UTC)
        super().__init__(410, f"the URL expired at {at:%Y-%m-%d %H:%M:%S} UTC; ask for a new one")


class RevokedUrl(HTTPException):
    def __init__(self) -> None:
        super().__init__(
            403, "the API key that asked for this URL is not valid any more; ask for a new URL with another"
        )


class TokenSigner:
    """Signs payloads and reads them back. Each payload has one token; no other spelling of it is accepted."""

    def __init__(self, secret: bytes, *, purpose: bytes = _PURPOSE) -> None:
        """Signers of different purposes do not accept each other's tokens."""
        self._key = hmac.digest(secret, purpose, hashlib.sha256)

    def sign(self, payload: Mapping[str, Any], *, expires_at: datetime) -> str:  # Any: plain JSON
        """Expects JSON values only. Times are kept in whole seconds, so a token ends up to one second early."""
        claims = {**payload, _AUDIENCE_CLAIM: _AUDIENCE, _EXPIRY_CLAIM: int(expires_at.timestamp())}
        return self._encode(claims)

    def read(self, token: str, *, now: datetime) -> dict[str, Any]:  # Any: plain JSON
        """The payload, with the expiry under ``exp``. Raises ForeignToken or ExpiredToken."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key,
                algorithms=[_ALGORITHM],
                audience=_AUDIENCE,
                options={"require": [_AUDIENCE_CLAIM, _EXPIRY_CLAIM], "verify_exp": False},  # checked against ``now``
            )
        except (jwt.InvalidTokenError, UnicodeError):
            raise ForeignToken from None
        # base64 ignores the last bits of a segment, so a changed token may decode to the same bytes
        if not hmac.compare_digest(self._encode(claims).encode(), token.encode()):
            raise ForeignToken
        if now.timestamp() >= claims[_EXPIRY_CLAIM]:
            raise ExpiredToken(claims[_EXPIRY_CLAIM])
        del claims[_AUDIENCE_CLAIM]
        return claims

    def _encode(self, claims: Mapping[str, Any]) -> str:  # Any: plain JSON
        return jwt.encode(dict(sorted(claims.items())), self._key, algorithm=_ALGORITHM)


class SignedUrls:
    """Tokens that are bound to the API key of the caller who asked for them."""

    def __init__(self, secret: bytes, users: UserDirectory, *, now: Callable[[], datetime]) -> None:
        self._signer = TokenSigner(secret)
        self._users = users
        self._now = now

    def sign(self, caller: Caller, payload: Mapping[str, Any], *, expires_at: datetime) -> str:  # Any: plain JSON
        return self._signer.sign({**payload, _USER: caller.user_id, _KEY: caller.key_mark}, expires_at=expires_at)

    def read(self, token: str, request: Request) -> dict[str, Any]:  # Any: plain JSON
        """The payload. The connection of ``request`` then counts as a known caller's.

        Raises ForeignToken, ExpiredToken, or RevokedUrl when the key is revoked.
        """
        signed = self._signer.read(token, now=self._now())
        if not self._users.is_valid(str(signed.get(_USER)), key_mark=signed.get(_KEY)):
            raise RevokedUrl
        recognize_connection(request.scope)
        return signed
