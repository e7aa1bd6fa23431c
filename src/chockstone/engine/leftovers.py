"""Leftovers: weights of unnamed samplers whose session is over, as a killed server leaves them.

While a server runs, they go with their session. Nothing else in the store is touched, whatever
the catalog knows or has lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from chockstone.catalog import Catalog
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.archives import ephemeral_session, stored_session
from chockstone.engine.storage import Storage

log = logging.getLogger(__name__)


class Leftovers:
    def __init__(self, catalog: Catalog, storage: Storage) -> None:
        self._catalog = catalog
        self._storage = storage
        self.on_freed: Callable[[str], None] = lambda _: None  # an archive that is gone

    async def free(self) -> int:
        """Delete those whose session is finished or unknown; how many. Raises StoreError if the store cannot tell."""
        sessions = {name: ephemeral_session(name) for name in await self._storage.names()}
        # The store first: a session that has weights there by then was in the catalog before.
        living = {stored_session(row.session_id) for row in await self._catalog.sessions.list_unfinished()}
        freed = 0
        for archive, session in sessions.items():
            if session is None or session in living:
                continue
            try:
                freed += await self._storage.delete(archive)
            except StoreError as error:
                log.warning("weights of an ended session not deleted archive=%s error=%s", archive, error)
                continue
            self.on_freed(archive)
            log.info("weights of an ended session deleted archive=%s", archive)
        return freed
