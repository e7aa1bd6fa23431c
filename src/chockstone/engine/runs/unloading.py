"""Unloading: what happens to a run that has ended: closed, discarded, lost or never opened.

A closed run's recovery archives are deleted at once, and its journal when no client can ask for its last results.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from chockstone.backends.protocol import Workers
from chockstone.catalog import Catalog, CatalogError, RowMissing
from chockstone.engine.config import Busy
from chockstone.engine.futures import GRACE_SECONDS, Futures
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.recovery.archives import RecoveryArchives
from chockstone.engine.runs.recovery.journal_losses import JournalMarks
from chockstone.engine.runs.recovery.run_usage import RunUsage
from chockstone.engine.runs.run import LiveRuns, Run
from chockstone.engine.runs.run_journal import RunJournals
from chockstone.engine.runs.training import TrainingRequests
from chockstone.wire.failures import BadRequest, RequestError

log = logging.getLogger(__name__)


class RunUnloader:
    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        runs: LiveRuns,
        journals: RunJournals,
        marks: JournalMarks,
        archives: RecoveryArchives,
        usage: RunUsage,
        history: StepHistory,
        *,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
        trusts_ages: Callable[[], bool],
    ) -> None:
        self._workers = workers
        self._catalog = catalog
        self._runs = runs
        self._journals = journals
        self._marks = marks
        self._archives = archives
        self._usage = usage
        self._history = history
        self._in_background = in_background
        self._trusts_ages = trusts_ages
        self._undeleted: set[str] = set()  # runs whose journal could not be deleted, as a warning says

    def note_closed(self, run: Run, closing: Operation) -> None:
        """The run was closed by this operation, whose result a client may still ask for."""
        self._runs.remove(run)
        self._in_background(self._archives.drop_all(run.run_id))
        if closing.promise is not None:
            closing.promise.when_gone(lambda: self._in_background(self._remove_journal(run)))

    def note_lost(self, run: Run) -> None:
        """No server can recover the run."""
        self._in_background(self.remove_lost(run))

    def note_open_failed(self, run: Run) -> None:
        self._in_background(self._remove_unopened(run))

    async def discard(self, run: Run) -> None:
        """End a run that cannot be closed in its lane, because the lane does not continue."""
        run.begin_closing()
        await run.lane.drained()
        self._runs.remove(run)
        await run.journal.close()
        await self.unload(run.run_id)

    async def unload(self, run_id: str) -> bool:
        """End a parked run without waking it. False, with nothing done: the run is live."""
        async with self._runs.lock(run_id):
            if self._runs.get(run_id) is not None:
                return False
            await self._catalog.runs.set_state(run_id, "unloaded")
            await self._delete_files(run_id)
            return True

    async def remove(self, run_id: str) -> bool:
        """Delete the files and then the row of a run that has ended; whether that is done.

        False: the run was created again, or its journal cannot be deleted. The next server would rebuild the row from
        the journal.
        """
        async with self._runs.lock(run_id):
            if self._runs.get(run_id) is not None or not await self._delete_files(run_id):
                return False
            await self._history.remove(run_id)
            await self._catalog.runs.delete(run_id)
            return True

    async def sweep(self) -> None:
        """Delete the journals of runs that ended a while ago: no client asks for their last results."""
        if not self._journals.are_kept or not self._trusts_ages():
            return
        old = await self._journals.list_runs(min_age_seconds=GRACE_SECONDS)
        journals = set(await self._journals.list_runs())
        marked = [run_id for run_id in await asyncio.to_thread(self._marks.list_runs) if run_id not in journals]
        for run_id, is_over in (await self._catalog.runs.are_over([*old, *marked])).items():
            if not is_over:
                continue
            async with self._runs.lock(run_id):
                if self._runs.get(run_id) is None:
                    await self._delete_files(run_id)
        await self._sweep_histories(journals)

    async def _sweep_histories(self, journals: set[str]) -> None:
        """Delete the histories of runs that neither the catalog nor a journal knows."""
        old = await self._history.list_runs(written_before=time.time() - GRACE_SECONDS)
        unknown = [run_id for run_id in old if run_id not in journals and self._runs.get(run_id) is None]
        for run_id in set(unknown).difference(await self._catalog.runs.are_over(unknown)):
            async with self._runs.lock(run_id):
                if self._runs.get(run_id) is None:
                    log.info("history of a removed run deleted run=%s", run_id)
                    await self._history.remove(run_id)

    async def remove_lost(self, run: Run) -> None:
        """The run takes no room any longer; its row says why it is lost."""
        await self._catalog.runs.set_state(run.run_id, "lost", failure=run.state.reason)
        async with self._runs.lock(run.run_id):
            while not run.lane.is_idle():
                await run.lane.drained()
            self._runs.remove(run)
            await run.journal.close()

    async def _remove_unopened(self, run: Run) -> None:
        async with self._runs.lock(run.run_id):  # a client that creates it again waits, and finds nothing of it
            self._runs.remove(run)
            if self._runs.get(run.run_id) is not None:
                return  # it was created again meanwhile
            with suppress(CatalogError):
                await self._catalog.runs.set_state(run.run_id, "lost", failure=run.state.reason)
            with suppress(RequestError):
                worker = self._workers.replicas[run.replica]
                await worker.close_run(run.run_id, generation=worker.generation)

    async def _remove_journal(self, run: Run) -> None:
        async with self._runs.lock(run.run_id):
            state = "unloaded"
            with suppress(RowMissing):
                state = (await self._catalog.runs.get(run.run_id)).state
            if self._runs.get(run.run_id) is None and state == "unloaded":  # else it was created again
                await self._usage.flush(run.run_id)
                await run.journal.remove()
                await self._usage.forget(run.run_id)
                await self._marks.forget(run.run_id)

    async def _delete_files(self, run_id: str) -> bool:
        """Delete the journal once the catalog has all that the run used; whether the journal is gone.

        Usage and mark of a journal that cannot be deleted are kept, so that no sweep counts it again. Raises
        CatalogError with the journal kept.
        """
        await self._usage.recover(run_id)
        await self._usage.flush(run_id)
        self._runs.note_ended(run_id)
        is_gone = await self._journals.delete(run_id)
        if is_gone:
            self._undeleted.discard(run_id)
            await self._usage.forget(run_id)
            await self._marks.forget(run_id)
        elif run_id not in self._undeleted:
            self._undeleted.add(run_id)
            log.warning("journal not deleted run=%s; check the permissions of its directory", run_id)
        await self._archives.drop_all(run_id)
        return is_gone


class RunEnd:
    """Ends runs, whether they are live, stuck or parked."""

    def __init__(self, runs: LiveRuns, unloader: RunUnloader, training: TrainingRequests, futures: Futures) -> None:
        self._runs = runs
        self._unloader = unloader
        self._training = training
        self._futures = futures

    async def end(self, run_id: str, *, within_seconds: float | None = None) -> None:
        """On return the run is not live, and no server wakes it. It may be woken, and ended again, in between.

        Raises BadRequest when its operations do not end in time, and Busy when it cannot be ended now; the run may
        be ended again later. None: its operations may take as long as they do.
        """
        while not await self._unloader.unload(run_id):
            if (run := self._runs.get(run_id)) is not None:
                await self._end_live(run, within_seconds)

    async def _end_live(self, run: Run, within_seconds: float | None) -> None:
        """On return the run is not live, or is stuck: the next call discards it."""
        if run.is_stuck:
            await self._unloader.discard(run)
            return
        if run.lane.is_halted:
            raise Busy(f"run {run.run_id!r} is not ended: the server is shutting down; try again later")
        if not run.is_closing or run.lane.is_idle():  # idle: an earlier close failed
            self._futures.disown(await self._training.close(run))
        try:
            async with asyncio.timeout(within_seconds):
                await run.lane.drained()
        except TimeoutError:
            raise BadRequest(
                f"run {run.run_id!r} still executes operations and takes no new ones; try again when they have ended"
            ) from None
        if self._runs.get(run.run_id) is run and not run.is_stuck:
            raise Busy(f"run {run.run_id!r} is not ended: the worker did not close it; try again in a moment")
