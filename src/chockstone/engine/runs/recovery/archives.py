"""Recovery archives: a run's whole state, written every few steps so that a replay stays short.

Each holds everything up to one operation of the journal, whose sequence is in its name. Two are kept: if the newest is
damaged, the other and a longer replay give the same state.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chockstone.backends.protocol import SaveCall, WorkerLost, Workers
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.config import Durability
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.runs.run import PARKED, Run
from chockstone.engine.runs.saving import failure_reason
from chockstone.engine.storage.archive_names import recovery_folder
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import RequestError

log = logging.getLogger(__name__)
_MAX_OPERATIONS: Final = 10_000  # that a run keeps in memory, however small each of them is
_RETRY_SECONDS: Final = 5.0  # after a failed write


@dataclass(frozen=True, slots=True, order=True)
class RecoveryArchive:
    through: int  # the last operation that it holds
    name: str


class RecoveryArchives:
    def __init__(
        self,
        workers: Workers,
        storage: ArchiveStorage,
        durability: Durability,
        history: StepHistory,
        instruments: Instruments,
        *,
        reserve_bytes: int,
        on_written: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = workers
        self._storage = storage
        self._durability = durability
        self._history = history
        self._instruments = instruments
        self._reserve_bytes = reserve_bytes
        self._monotonic = monotonic
        self._retry_at: dict[str, float] = {}  # by run
        self._on_written = on_written

    def is_due(self, run: Run) -> bool:
        if not run.journal.is_kept or run.is_archiving or run.is_saving:
            return False
        if not run.generation or run.is_lost:
            return False
        backlog = run.backlog
        if self._monotonic() < self._retry_at.get(run.run_id, 0.0):
            return False
        is_long = backlog.steps >= self._durability.steps or backlog.seconds >= self._durability.replay_seconds / 2
        is_many = backlog.operations >= _MAX_OPERATIONS
        return backlog.operations > 0 and (is_long or is_many or self.is_crowded(run))

    def is_crowded(self, run: Run) -> bool:
        """Whether the journal has grown so far that the run must wait for an archive."""
        return run.backlog.operations > 0 and run.journal.size_bytes > self._durability.journal_bytes

    async def take(self, run: Run, through: int, release: Callable[[], None] = lambda: None) -> bool:
        """Write one of the run's present state; whether that succeeded. ``release`` is called once the state is copied.

        To be called when ``through`` is the last operation that was begun, and all operations have ended.
        """
        worker = self._workers.replicas[run.replica]
        run.begin_archive()
        name = f"{recovery_folder(run.run_id)}/{through:016d}.{secrets.token_hex(4)}"
        try:
            await run.journal.flushed()  # no result is found out again once the archive is there
            started = self._monotonic()
            call = SaveCall(
                run_id=run.run_id,
                archive=name,
                kind="recovery",
                metadata={
                    "run_id": run.run_id,
                    "through": through,
                    "environment": dict(worker.environment),
                },
                reserve_bytes=self._reserve_bytes,
            )
            reply = await worker.save(call, on_release=release, generation=run.generation)
        except RequestError as error:
            self._instruments.save_failed("recovery", failure_reason(error))
            run.note_archive_failed()
            if not isinstance(error, WorkerLost):
                self._retry_at[run.run_id] = self._monotonic() + _RETRY_SECONDS
                log.warning("recovery archive not written run=%s error=%s", run.run_id, error)
            return False
        finally:
            run.end_archive()
        self._retry_at.pop(run.run_id, None)
        seconds = self._monotonic() - started
        self._instruments.saved("recovery", seconds=seconds, stall_seconds=reply.seconds, size_bytes=reply.size_bytes)
        log.debug("recovery archive written run=%s through=%d bytes=%d", run.run_id, through, reply.size_bytes)
        run.note_archive(name, seal=reply.seal, through=through)
        await self._delete_older(run)
        await self._history.sync(run.history)  # the journal drops the results that the history is completed from
        run.journal.rotate(run.head())
        run.journal.cover(run.replay_starts_after)
        self._on_written()
        return True

    async def unload(self, run: Run, reason: str = PARKED) -> bool:
        """Write the run's state into a recovery archive and drop it from the worker; whether that succeeded.

        ``reason``: why it will be recovered.
        To be called in a turn of its lane, or while the lane is halted.
        """
        worker = self._workers.replicas[run.replica]
        if not run.generation or run.generation != worker.generation or not run.journal.is_kept:
            return True  # no worker has it, or no server could recover it
        if not worker.is_ready:
            return False  # its worker died a moment ago, and the next one is not waited for
        if run.backlog.operations and not await self.take(run, run.last_begun):
            return False
        with suppress(WorkerLost):
            await worker.close_run(run.run_id, generation=run.generation)
        run.note_unloaded(reason)
        return True

    async def candidates(self, run_id: str) -> list[RecoveryArchive]:
        """Newest first. Raises StoreError."""
        found = []
        for name in await self._storage.names(recovery_folder(run_id)):
            through = name.rpartition("/")[2].partition(".")[0]
            if through.isdigit():
                found.append(RecoveryArchive(int(through), name))
        return sorted(found, reverse=True)

    async def drop_all(self, run_id: str) -> None:
        """Delete those of a run that has ended."""
        try:
            for each in await self.candidates(run_id):
                await self._storage.delete(each.name)
        except StoreError as error:
            log.warning("recovery archives not deleted run=%s error=%s", run_id, error)

    async def _delete_older(self, run: Run) -> None:
        try:
            for each in await self.candidates(run.run_id):
                if each.through not in run.archives:
                    await self._storage.delete(each.name)
                    run.note_archive_deleted(each.name)
        except StoreError as error:
            log.warning("old recovery archives not deleted run=%s error=%s", run.run_id, error)
