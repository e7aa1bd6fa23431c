"""Users: who is calling, from the credential in ``X-API-Key``.

A credential is a key (``tml-…``) or a token that this server signed. Without configured keys every
key is the local user's, which is why such a server listens on loopback only.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import jwt
from fastapi import Depends, HTTPException, Request

LOCAL_USER: Final = "local"
_TOKEN_LIFETIME: Final = timedelta(hours=1)  # clients that get 5 minutes or less ask again without pause
_ISSUER: Final = "chockstone"
ORGANIZATION: Final = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    user_id: str


class Users:
    def __init__(self, keys: Mapping[str, str], *, secret: bytes, now: Callable[[], datetime]) -> None:
        self._users = {_digest(key): user_id for user_id, key in keys.items()}
        self._secret = secret
        self._now = now

    def identify(self, credential: str | None) -> Caller:
        """Raises 401 for a credential that is nobody's."""
        if not credential:
            raise HTTPException(401, "no credential: set TINKER_API_KEY to a key of this server (tml-...)")
        if credential.startswith("eyJ"):
            return self._from_token(credential)
        if not credential.startswith("tml-"):
            raise HTTPException(401, "the credential is not a key of this server: keys start with 'tml-'")
        if not self._users:
            return Caller(LOCAL_USER)
        if (user_id := self._users.get(_digest(credential))) is None:
            raise HTTPException(401, "the key is not known to this server; ask its operator for one")
        return Caller(user_id)

    def token(self, caller: Caller) -> str:
        now = self._now()
        claims = {
            "iss": _ISSUER,
            "sub": caller.user_id,
            "org_id": ORGANIZATION,
            "email": "",
            "iat": now,
            "exp": now + _TOKEN_LIFETIME,
        }
        return jwt.encode(claims, self._secret, algorithm="HS256")

    def _from_token(self, token: str) -> Caller:
        try:
            claims = jwt.decode(
                token, self._secret, algorithms=["HS256"], issuer=_ISSUER, options={"require": ["exp", "sub"]}
            )
        except jwt.ExpiredSignatureError:
            raise HTTPException(401, "the token has expired; make a new client, which fetches a new one") from None
        except jwt.InvalidTokenError:
            raise HTTPException(401, "the token was not signed by this server") from None
        user_id = str(claims["sub"])
        if self._users and user_id not in self._users.values():
            raise HTTPException(401, f"user {user_id!r} has no key on this server any more")
        return Caller(user_id)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()  # looked up by digest, so timing tells nothing of the key


def read_secret(path: Path) -> bytes:
    """The secret that tokens are signed with; made on first use, readable by its owner alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = path.read_bytes()
        if len(secret) < 32:
            raise ValueError(f"{str(path)!r} does not hold a signing secret; remove it to have one made") from None
        return secret
    with os.fdopen(descriptor, "wb") as file:
        secret = secrets.token_bytes(32)
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    return secret


def _caller(request: Request) -> Caller:
    users: Users = request.app.state.context.users
    return users.identify(request.headers.get("x-api-key"))


CallerDep = Annotated[Caller, Depends(_caller)]
