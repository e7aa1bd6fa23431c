"""Sessions of browsers: the cookie that identifies a signed-in user, and the token that each change must carry.

The cookie is a signed token with the user and the mark of the API key, so revoking the key ends the session. A change
needs the token in a header field, which pages of other sites can neither read nor send.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from fastapi import HTTPException, Response

from chockstone.api.signed_urls import TokenSigner
from chockstone.api.users import LOCAL_USER, Caller, UserDirectory

COOKIE: Final = "chockstone_console"
TOKEN_HEADER: Final = "x-console-token"  # noqa: S105  # the name of a header field
LIFETIME: Final = timedelta(days=7)
_PURPOSE: Final = b"chockstone: console sessions, 1"
_USER: Final = "user"
_KEY: Final = "key"
_MOST_COOKIE_CHARACTERS: Final = 4096


@dataclass(frozen=True, slots=True)
class BrowserSession:
    caller: Caller
    token: str = field(repr=False)  # for changes
    is_signed_in: bool  # False: the server has no keys, so it asks for none


class BrowserSessions:
    """``cookie_path``: of the console, as browsers see it."""

    def __init__(self, secret: bytes, users: UserDirectory, *, cookie_path: str, now: Callable[[], datetime]) -> None:
        self._signer = TokenSigner(secret, purpose=_PURPOSE)
        self._token_key = hmac.digest(secret, _PURPOSE + b", changes", hashlib.sha256)
        self._users = users
        self._cookie_path = cookie_path
        self._now = now

    def find(self, cookie_fields: list[str]) -> BrowserSession | None:
        """The session of a request with these ``Cookie`` fields; None: it is not signed in, or not any more."""
        if self._users.is_open:
            return BrowserSession(Caller(LOCAL_USER), self._token_of("open"), is_signed_in=False)
        cookie = _only_value(cookie_fields)
        if cookie is None or len(cookie) > _MOST_COOKIE_CHARACTERS:
            return None
        try:
            claims = self._signer.read(cookie, now=self._now())
        except HTTPException:  # foreign, changed or expired
            return None
        user_id, key_mark = str(claims.get(_USER)), claims.get(_KEY)
        if key_mark is None or not self._users.is_valid(user_id, key_mark=str(key_mark)):
            return None
        return BrowserSession(Caller(user_id, str(key_mark)), self._token_of(cookie), is_signed_in=True)

    def begin(self, response: Response, key: str, *, is_secure: bool) -> Caller:
        """Sign in with an API key: sets the cookie. Raises HTTPException 401 for an unknown key."""
        if not key.startswith("tml-"):
            raise HTTPException(401, "this is not an API key of the server: keys start with 'tml-'")
        caller = self._users.identify(key)
        expires_at = self._now() + LIFETIME
        response.set_cookie(
            COOKIE,
            self._signer.sign({_USER: caller.user_id, _KEY: caller.key_mark}, expires_at=expires_at),
            max_age=int(LIFETIME.total_seconds()),
            path=self._cookie_path,
            secure=is_secure,
            httponly=True,
            samesite="strict",
        )
        return caller

    def end(self, response: Response, *, is_secure: bool) -> None:
        """Sign out in this browser: deletes the cookie."""
        response.delete_cookie(COOKIE, path=self._cookie_path, secure=is_secure, httponly=True, samesite="strict")

    def _token_of(self, cookie: str) -> str:
        return hmac.digest(self._token_key, cookie.encode(), hashlib.sha256).hex()


def _only_value(cookie_fields: list[str]) -> str | None:
    """The value of our cookie. None where there are several: another host of the domain may have set one."""
    pairs = [pair.strip().partition("=") for each in cookie_fields for pair in each.split(";")]
    values = [value for name, _, value in pairs if name == COOKIE]
    return values[0] if len(values) == 1 and values[0] else None
