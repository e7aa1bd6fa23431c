"""Removal: deletes a run for its owner, with its checkpoints, its journal and its recovery archives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from chockstone.catalog import Catalog, RunRow
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import Busy
from chockstone.engine.futures import Futures
from chockstone.engine.runs.run import LiveRuns, Run
from chockstone.engine.runs.training import TrainingRequests
from chockstone.engine.runs.unloading import RunUnloader
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.wire.failures import BadRequest

log = logging.getLogger(__name__)
_END_SECONDS: Final = 30.0  # for the operations of a live run


class RunRemoval:
    def __init__(
        self,
        catalog: Catalog,
        runs: LiveRuns,
        unloader: RunUnloader,
        training: TrainingRequests,
        futures: Futures,
        checkpoints: CheckpointLifecycle,
        audit: AuditLog,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._catalog = catalog
        self._runs = runs
        self._unloader = unloader
        self._training = training
        self._futures = futures
        self._checkpoints = checkpoints
        self._audit = audit
        self._now = now

    async def remove(self, row: RunRow, *, by: str) -> int:
        """End the run if it is live, move its checkpoints to the trash, and delete its row last.

        Returns the number of checkpoints. Raises BadRequest while operations of the run do not end, and Busy when the
        run cannot be ended or deleted now. After an error or a crash the run is still listed, and can be removed again.
        """
        await self._end(row.run_id)
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

    async def _end(self, run_id: str) -> None:
        """On return the run is not live, and no server wakes it. It may be woken, and ended again, in between."""
        while not await self._unloader.unload(run_id):
            if (run := self._runs.get(run_id)) is not None:
                await self._end_live(run)

    async def _end_live(self, run: Run) -> None:
        """On return the run is not live, or is stuck: the next call discards it."""
        if run.is_stuck:
            await self._unloader.discard(run)
            return
        if run.lane.is_halted:
            raise Busy(f"run {run.run_id!r} is not removed: the server is shutting down; remove it again later")
        if not run.is_closing or run.lane.is_idle():  # idle: an earlier close failed
            self._futures.disown(await self._training.close(run))
        try:
            async with asyncio.timeout(_END_SECONDS):
                await run.lane.drained()
        except TimeoutError:
            raise BadRequest(
                f"run {run.run_id!r} still executes operations and takes no new ones; remove it when they have ended"
            ) from None
        if self._runs.get(run.run_id) is run and not run.is_stuck:
            raise Busy(f"run {run.run_id!r} is not removed: the worker did not close it; remove it again in a moment")
