"""Users: identifies the caller by a credential, which ``vendors.credentials`` finds in the request.

A credential is an API key (``tml-…``) or a token that this server signed. Keys are configured, or created by
``chockstone keys create`` and read from the catalog. On a server that never had a key, every key is the local
user's; such a server listens on loopback only. The data directory records that its server had a key.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Protocol

import jwt
from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import APIKeyHeader

from chockstone.catalog import Catalog
from chockstone.engine.ownership.api_keys import digest_of

log = logging.getLogger(__name__)

LOCAL_USER: Final = "local"
_TOKEN_LIFETIME: Final = timedelta(hours=1)  # with 5 minutes or less clients renew it without pause
_ISSUER: Final = "chockstone"
ORGANIZATION: Final = "local"
_POLL_SECONDS: Final = 2.0  # between two reads of the catalog's keys


@dataclass(frozen=True, slots=True)
class Caller:
    user_id: str
    key_mark: str | None = field(
        default=None, compare=False, repr=False
    )  # HMAC of the key that the credential comes from


class StoredKey(Protocol):
    """A key in the catalog, which has only its digest."""

    @property
    def user_id(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def revoked_at(self) -> datetime | None: ...


class UserDirectory:
    def __init__(
        self, keys: Mapping[str, str], *, secret: bytes, now: Callable[[], datetime], keys_required: bool = False
    ) -> None:
        """``keys_required``: refuse callers without a key even while no key is known."""
        self._configured = {digest_of(key): user_id for user_id, key in keys.items()}
        self._secret = secret
        self._now = now
        self._users: dict[str, str] = {}  # by digest of the key
        self._marks: dict[str, str] = {}  # by the mark of the key, which tokens carry
        self._reading = asyncio.Lock()
        self.is_open = not (self._configured or keys_required)  # no key was ever created: accept any
        self._take(self._configured)

    async def refresh(self, read: Callable[[], Awaitable[Iterable[StoredKey]]]) -> None:
        """Replace the catalog's keys by those that ``read`` returns.

        Reads take turns: keys that were read before a change never replace those that were read after it. So a key that
        was revoked before this was called is refused from the return on.
        """
        async with self._reading:
            self.reload(await read())

    def reload(self, stored: Iterable[StoredKey]) -> None:
        """Replace the catalog's keys; the configured ones stay.

        Once there was a key, the server stays closed even when the last one is revoked.
        """
        keys = list(stored)
        active = {key.digest: key.user_id for key in keys if key.revoked_at is None}
        self.is_open = self.is_open and not keys
        self._take(active | self._configured)

    def _take(self, users: dict[str, str]) -> None:
        if users != self._users:
            self._users = users
            self._marks = {self._mark(digest): user_id for digest, user_id in users.items()}

    @property
    def names(self) -> list[str]:
        """Users that have a key."""
        return list(dict.fromkeys([*self._configured.values(), *self._users.values()]))

    def identify(self, credential: str | None) -> Caller:
        """Raises HTTPException 401 for an unknown credential."""
        if not credential:
            raise HTTPException(401, "no credential: set TINKER_API_KEY to a key of this server (tml-...)")
        if credential.startswith("eyJ"):
            return self._from_token(credential)
        if not credential.startswith("tml-"):
            raise HTTPException(401, "the credential is not a key of this server: keys start with 'tml-'")
        if self.is_open:
            return Caller(LOCAL_USER)
        digest = digest_of(credential)
        if (user_id := self._users.get(digest)) is None:
            raise HTTPException(401, "the key is not known to this server; ask its operator for one")
        return Caller(user_id, self._mark(digest))

    def is_valid(self, user_id: str, *, key_mark: str | None) -> bool:
        """Whether the key with this mark is still the user's. None: issued while the server had no keys."""
        return self.is_open if key_mark is None else self._marks.get(key_mark) == user_id

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
        if caller.key_mark is not None:
            claims["key"] = caller.key_mark
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
        caller = Caller(str(claims["sub"]), claims.get("key"))
        if self.is_open:
            return caller
        if caller.user_id not in self._users.values():
            raise HTTPException(401, f"user {caller.user_id!r} has no key on this server any more")
        if caller.key_mark is None:
            raise HTTPException(401, "the token was made when the server had no API keys; make a new client with a key")
        if self._marks.get(caller.key_mark) != caller.user_id:
            raise HTTPException(401, f"the key of user {caller.user_id!r} that the token was made with is revoked")
        return caller

    def _mark(self, digest: str) -> str:
        """Identifies a key in a token without revealing the key or its digest."""
        return hmac.digest(self._secret, digest.encode(), "sha256").hex()[:32]


async def follow_keys(users: UserDirectory, catalog: Catalog, *, remember: Callable[[], None] = lambda: None) -> None:
    """Reload the catalog's keys regularly, until cancelled.

    While the catalog cannot be read, the known keys stay valid. ``remember`` is called in a thread while keys are
    required, and again if it raised.
    """
    is_away = False
    while True:
        try:
            await users.refresh(catalog.keys.list)
            if not users.is_open:
                await asyncio.to_thread(remember)
        except Exception as error:  # noqa: BLE001  # the loop must survive: a key that is revoked later must be refused
            if not is_away:
                log.warning("the keys in the catalog cannot be read; those known stay valid error=%s", error)
            is_away = True
        else:
            if is_away:
                log.info("the keys in the catalog are read again")
            is_away = False
        await asyncio.sleep(_POLL_SECONDS)


def read_secret(path: Path) -> bytes:
    """The secret that signs tokens; created on first use, readable by its owner only."""
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


# Declares the credential in the OpenAPI document of each route that needs one; ``admission`` checks the credential.
API_KEY: Final = APIKeyHeader(
    name="X-API-Key",
    scheme_name="ApiKey",
    description="An API key of this server (`tml-…`), or a token from `POST /api/v1/auth/token`. Below `/v1`, `/oai` "
    "and `/anthropic`, `Authorization: Bearer` takes the same.",
    auto_error=False,
)


def caller_of(request: Request, _: Annotated[str | None, Security(API_KEY)]) -> Caller:
    """The caller, as identified by ``admission``."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        raise HTTPException(401, "no credential: set TINKER_API_KEY to a key of this server (tml-...)")
    return caller


CallerDep = Annotated[Caller, Depends(caller_of)]
