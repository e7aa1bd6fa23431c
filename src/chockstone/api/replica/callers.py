"""Callers: identifies the caller of a request to an API replica.

The replica knows the API keys from the catalog and the settings, as the engine does, and refuses unknown keys
itself. Only the engine has the secret of tokens, so the replica asks it about a token and caches the answer for
some seconds. On a server without keys the replica asks the engine, too: only the engine may let everyone in.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import orjson
from fastapi import HTTPException

from chockstone.api.replica.engine_link import EngineLink
from chockstone.api.users import Caller, UserDirectory
from chockstone.telemetry.origin import current_request_id

_CACHED_SECONDS: Final = 10.0  # for so long a token still reads after its key was revoked
_MOST_CACHED: Final = 10_000  # callers


class ReplicaCallers:
    def __init__(
        self, users: UserDirectory, engine: EngineLink, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._users = users
        self._engine = engine
        self._monotonic = monotonic
        self._cached: dict[bytes, tuple[Caller, float]] = {}  # by digest: caller, expiry; oldest first

    @property
    def is_open(self) -> bool:
        return self._users.is_open

    async def identify(self, credential: str | None) -> Caller:
        """Raises HTTPException 401 for an unknown credential."""
        if credential and (credential.startswith("eyJ") or self._users.is_open):
            return await self._cached_caller(credential)
        return self._users.identify(credential)

    async def _cached_caller(self, credential: str) -> Caller:
        digest = hashlib.sha256(credential.encode()).digest()
        now = self._monotonic()
        caller, until = self._cached.get(digest, (None, now))
        if caller is not None and now < until:
            return caller
        caller = Caller(await self._ask_engine(credential))
        self._cached.pop(digest, None)  # to be the newest again
        self._cached[digest] = (caller, now + _CACHED_SECONDS)
        if len(self._cached) > _MOST_CACHED:
            del self._cached[next(iter(self._cached))]
        return caller

    async def _ask_engine(self, credential: str) -> str:
        """The user's id. Raises HTTPException as the engine answers, or EngineAway."""
        headers = [("X-API-Key", credential)]
        if (request_id := current_request_id()) is not None:
            headers.append(("X-Request-ID", request_id))
        async with await self._engine.ask("GET", "/api/v1/auth/apikey/me", headers=headers) as answer:
            try:
                content = orjson.loads(await answer.read())
            except (aiohttp.ClientError, OSError, orjson.JSONDecodeError) as error:
                raise self._engine.away(error) from error
        if answer.status != 200:
            raise HTTPException(answer.status, content.get("detail"))
        if not isinstance(content, dict) or "name" not in content:
            raise self._engine.away(ValueError("it is not a Chockstone server"))
        return str(content["name"])
