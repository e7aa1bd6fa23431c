"""Audit: what was done to checkpoints and by whom, written behind what is done.

Noting an event costs nothing and never fails; entries reach the catalog in batches, moments later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from chockstone.catalog import AuditEvent, Catalog, CatalogError

log = logging.getLogger(__name__)
_KEPT: Final = 100_000  # entries that the catalog does not take; older ones are lost
_RETRY_SECONDS: Final = 5.0


class AuditLog:
    def __init__(self, catalog: Catalog, *, now: Callable[[], datetime]) -> None:
        self._catalog = catalog
        self._now = now
        self._entries: list[AuditEvent] = []
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()

    def __call__(
        self,
        event: str,
        *,
        owner: str,
        run_id: str | None = None,
        path: str | None = None,
        purpose: str | None = None,
        details: Mapping[str, Any] | None = None,  # Any: plain JSON
    ) -> None:
        """Note ``<resource>_<action>``. ``owner`` is whose audit it stands in; who did it goes into the details."""
        self._entries.append(AuditEvent(event, owner, self._now(), run_id, path, purpose, dict(details or {})))
        self._news.set()

    async def keep(self) -> None:
        """Write entries to the catalog, for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self.flush():
                await asyncio.sleep(_RETRY_SECONDS)
                self._news.set()

    async def flush(self) -> bool:
        """Write the entries so far to the catalog; call it before reading the audit. Whether all are written."""
        async with self._writing:  # entries that another flush is writing count, too
            entries, self._entries = self._entries, []
            try:
                await self._catalog.audit.record_many(entries)
            except CatalogError as error:
                log.warning("audit not written entries=%d error=%s", len(entries), error)
                self._entries = [*entries, *self._entries][-_KEPT:]
                return False
            return True
