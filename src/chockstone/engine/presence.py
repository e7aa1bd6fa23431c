"""Presence: when each session and run was last heard of, written down now and then.

Clients beat every ten seconds; the catalog hears of it in batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from chockstone.catalog import Catalog
from chockstone.catalog.errors import CatalogError

log = logging.getLogger(__name__)
_INTERVAL_SECONDS: Final = 15.0


class Presence:
    def __init__(self, catalog: Catalog, *, now: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._catalog = catalog
        self._now = now
        self._monotonic = monotonic
        self._started = monotonic()
        self._heard: dict[str, float] = {}  # by session: when, while this process lives
        self._sessions: dict[str, datetime] = {}
        self._runs: dict[str, datetime] = {}

    def saw_session(self, session_id: str) -> None:
        self._sessions[session_id] = self._now()
        self._heard[session_id] = self._monotonic()

    def silent_seconds(self, session_id: str) -> float:
        """For how long this process has not heard of a session, however its wall clock was set."""
        return self._monotonic() - self._heard.get(session_id, self._started)

    def has_heard(self, session_id: str) -> bool:
        """Whether this process has heard of an unfinished session."""
        return session_id in self._heard

    def forget_session(self, session_id: str) -> None:
        """The session is finished."""
        self._heard.pop(session_id, None)

    def saw_run(self, run_id: str) -> None:
        self._runs[run_id] = self._now()

    def last_request(self, run_id: str) -> datetime | None:
        return self._runs.get(run_id)

    async def keep(self) -> None:
        """Write the times to the catalog, for ever."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            try:
                await self.flush()
            except CatalogError as error:
                log.warning("presence not written error=%s", error)

    async def flush(self) -> None:
        sessions, self._sessions = self._sessions, {}
        runs, self._runs = self._runs, {}
        await self._catalog.sessions.touch_many(sessions)
        await self._catalog.runs.touch_many(runs)
