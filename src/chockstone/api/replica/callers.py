"""Callers: who asks, as far as a front can tell.

Keys are known here as they are to the engine, from the catalog and the settings, and a strange one is refused
at this door. Tokens are the engine's, which alone has their secret: it is asked, and believed for some
seconds. So it is where there are no keys at all: that anyone will do is for the engine to say.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final

import aiohttp
import orjson
from fastapi import HTTPException

from chockstone.api.replica.engine_link import EngineAway, EngineLink
from chockstone.api.users import Caller, UserDirectory

_BELIEVED_SECONDS: Final = 10.0  # as long may a token outlive its key, for what is only read
_MOST: Final = 10_000  # callers remembered


class ReplicaCallers:
    def __init__(
        self, users: UserDirectory, engine: EngineLink, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._users = users
        self._engine = engine
        self._monotonic = monotonic
        self._vouched: dict[bytes, tuple[Caller, float]] = {}  # and until when, by digest, oldest first

    @property
    def is_open(self) -> bool:
        return self._users.is_open

    async def identify(self, credential: str | None) -> Caller:
        """Raises 401 for a credential that is nobody's."""
        if credential and (credential.startswith("eyJ") or self._users.is_open):
            return await self._vouch(credential)
        return self._users.identify(credential)

    async def _vouch(self, credential: str) -> Caller:
        digest = hashlib.sha256(credential.encode()).digest()
        now = self._monotonic()
        caller, until = self._vouched.get(digest, (None, now))
        if caller is not None and now < until:
            return caller
        caller = Caller(await self._ask(credential))
        self._vouched.pop(digest, None)  # it is the newest again
        self._vouched[digest] = (caller, now + _BELIEVED_SECONDS)
        if len(self._vouched) > _MOST:
            del self._vouched[next(iter(self._vouched))]
        return caller

    async def _ask(self, credential: str) -> str:
        headers = [("X-API-Key", credential)]
        async with await self._engine.ask("GET", "/api/v1/auth/apikey/me", headers=headers) as answer:
            try:
                told = orjson.loads(await answer.read())
            except (aiohttp.ClientError, OSError, orjson.JSONDecodeError) as error:
                raise EngineAway(self._engine.url, error) from error
        if answer.status != 200:
            raise HTTPException(answer.status, told.get("detail"))
        if not isinstance(told, dict) or "name" not in told:
            raise EngineAway(self._engine.url, ValueError("it is not a Chockstone server"))
        return str(told["name"])
