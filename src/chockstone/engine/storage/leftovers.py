"""Leftovers: deletes archives of ended sessions and runs that a killed server left in the store.

These are weights of anonymous samplers, and recovery archives. A running server deletes them with their session or run.
No other archive is touched, even if the catalog does not know it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.storage.archive_names import ephemeral_session, stored_session
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.leftover_files import find_leftover_files, list_journals

log = logging.getLogger(__name__)


class Leftovers:
    def __init__(
        self,
        catalog: Catalog,
        storage: ArchiveStorage,
        *,
        journals: Path,
        on_deleted: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``journals``: the directory of run journals, since a run may be known by its journal alone. ``on_deleted`` is
        called with each archive that was deleted."""
        self._catalog = catalog
        self._storage = storage
        self._journals = journals
        self._on_deleted = on_deleted

    async def free(self) -> int:
        """Delete those whose session or run is over or unknown; how many.

        Raises StoreError if the store cannot tell what it has.
        """
        # The store first: a session or run that has something there by then was known before.
        names = await self._storage.names()
        files = await find_leftover_files(self._catalog, names, await asyncio.to_thread(list_journals, self._journals))
        unfinished = await self._catalog.sessions.list_unfinished()
        living = files.living_sessions.union(stored_session(row.session_id) for row in unfinished)
        sessions = {name: session for name in names if (session := ephemeral_session(name)) is not None}
        over = [*(name for name, session in sessions.items() if session not in living), *files.archives]
        freed = 0
        for archive in over:
            try:
                freed += await self._storage.delete(archive)
            except StoreError as error:
                log.warning("archive of an ended session not deleted archive=%s error=%s", archive, error)
                continue
            self._on_deleted(archive)
            log.info("archive of an ended session deleted archive=%s", archive)
        return freed
