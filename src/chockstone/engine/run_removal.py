"""Removal: deletes a run for its owner, with its checkpoints, its journal and its recovery archives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from chockstone.catalog import Catalog, RunRow
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import Busy
from chockstone.engine.runs.unloading import RunEnd, RunUnloader
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.wire.paths import LATEST, SCHEME, Kind

log = logging.getLogger(__name__)
_END_SECONDS: Final = 30.0  # for the operations of a live run


class RunRemoval:
    def __init__(
        self,
        catalog: Catalog,
        ending: RunEnd,
        unloader: RunUnloader,
        checkpoints: CheckpointLifecycle,
        audit: AuditLog,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._catalog = catalog
        self._ending = ending
        self._unloader = unloader
        self._checkpoints = checkpoints
        self._audit = audit
        self._now = now

    async def remove(self, row: RunRow, *, by: str) -> int:
        """End the run if it is live, move its checkpoints to the trash, and delete its row last.

        Returns the number of checkpoints. Raises BadRequest while an alias points at one of them or operations of the
        run do not end, and Busy when the run cannot be ended or deleted now. After an error or a crash the run is still
        listed, and can be removed again.
        """
        found = await self._catalog.checkpoints.list_by_run(row.run_id, now=self._now())
        latest = {f"{SCHEME}{row.run_id}/{kind}/{LATEST}" for kind in Kind}
        await self._checkpoints.refuse_aliased({each.path for each in found} | latest, owner=row.owner)
        await self._ending.end(row.run_id, within_seconds=_END_SECONDS)
        count = 0
        while found := await self._catalog.checkpoints.list_by_run(row.run_id, now=self._now()):
            removed = await self._checkpoints.delete(found, by=by)
            count += len(removed)
            if not removed:
                break  # another request removes them
        if not await self._unloader.remove(row.run_id):
            raise Busy(
                f"run {row.run_id!r} is not removed: it was created again, or its journal cannot be deleted, as the "
                "server's log says; remove it again"
            )
        self._audit("run_deleted", owner=row.owner, run_id=row.run_id, details={"by": by, "checkpoints": count})
        log.info("run removed run=%s checkpoints=%d by=%s", row.run_id, count, by)
        return count
