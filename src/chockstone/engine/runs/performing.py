"""Performing: the turn of one operation.

It is durable first; the run is restored if the worker does not have it; then it is done, what came of
it is written down and told, and now and then a recovery archive is taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from chockstone.backends.protocol import WorkerLost
from chockstone.catalog.database.retry import waiting_for_catalog
from chockstone.catalog.errors import CatalogAway, CatalogUnavailable
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.futures import Futures, Result
from chockstone.engine.journal.journal import JournalError
from chockstone.engine.journal.stall import Stalled
from chockstone.engine.queue_shares import QueueShares
from chockstone.engine.runs.crash_suspects import CrashSuspects
from chockstone.engine.runs.execution import Execution, Release
from chockstone.engine.runs.operations import CHANGES_STATE, Operation, OperationOutcome, check_plain, request_id_of
from chockstone.engine.runs.recovery import Halted, NotRecovered, Postponed, RunRecovery
from chockstone.engine.runs.recovery_archives import RecoveryArchives
from chockstone.engine.runs.run import Run
from chockstone.wire.failures import RequestError, ServerFailure

log = logging.getLogger(__name__)
_RESTORES: Final = 10  # of one run, each ended by a worker's death
_ROOM_CHECK_SECONDS: Final = 1.0


class Performing:
    def __init__(
        self,
        futures: Futures,
        limits: EngineLimits,
        execution: Execution,
        recovery: RunRecovery,
        archives: RecoveryArchives,
        suspects: CrashSuspects,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._futures = futures
        self._limits = limits
        self._execution = execution
        self._recovery = recovery
        self._archives = archives
        self._suspects = suspects
        self._monotonic = monotonic
        self._queued_bytes = QueueShares(limits.queued_bytes)
        self.is_stopping = False
        self.on_problem: Callable[[Run], None] = lambda _: None  # it cannot go on, ever
        self.on_unmade: Callable[[Run], None] = lambda _: None  # it could not even be opened
        recovery.finish = self._finish

    async def submit(self, live: Run, seq_id: int | None, operation: Operation, *, is_last: bool = False) -> str:
        """Queue the operation and return its request id once it is durable; the same ``seq_id`` gets the same id.

        Raises Busy when too much is queued, unless it is the run's last; Stalled when the journal takes nothing.
        """
        if seq_id is not None and live.numbers.has(seq_id):
            await live.journal.written(known := request_id_of(live.run_id, seq_id))
            return known
        if live.journal.is_closed:
            raise Busy(f"run {live.run_id!r} is being parked; try again in a moment")
        if live.hold is not None:
            raise Stalled(live.hold)  # the same request is taken by a server that serves the model
        check_plain(operation.values)
        size_bytes = len(operation.body or b"")
        if not self._queued_bytes.has_room(live.owner, size_bytes):
            raise Busy("the server holds as many request bytes of yours as it may; try again in a moment")
        if live.lane.waiting >= self._limits.operations_per_run and not is_last:
            raise Busy(f"run {live.run_id!r} has {live.lane.waiting} operations waiting; wait for some to end")
        live.used_at = self._monotonic()
        if seq_id is not None:
            live.numbers.add(seq_id)
        self.promise(live, operation)
        live.journal.add(operation)
        self.queue(live, operation)
        await live.journal.written(operation.request_id)
        return operation.request_id

    def promise(self, live: Run, operation: Operation) -> None:
        """Make its future, under its own id or a new one."""
        promise = self._futures.promise(live.owner, operation.request_id or None)
        promise.on_gone = lambda: live.journal.gone(operation)
        operation.promise, operation.request_id = promise, promise.request_id

    def queue(self, live: Run, operation: Operation) -> None:
        size_bytes = len(operation.body or b"")
        self._queued_bytes.add(live.owner, size_bytes)

        async def turn(release: Release) -> None:
            try:
                await self._take_turn(live, operation, release)
            finally:
                self._queued_bytes.remove(live.owner, size_bytes)

        live.lane.add(turn)

    def queue_restore(self, live: Run) -> None:
        """Bring the run back although nobody asks for anything: somebody will, or waits for a save."""

        async def turn(release: Release) -> None:
            try:
                await self._restored(live, None)
                if self._archives.is_due(live):  # what was replayed need not be the next time
                    await self._archives.take(live, live.last_begun, release)
            except (Halted, JournalError):
                live.lane.halt()
            except NotRecovered as error:
                self._give_up(live, error)
            except RequestError as error:  # told to whoever asks for something, which is tried again then
                log.warning("run not recovered run=%s error=%s", live.run_id, error)
            except Exception:  # the same
                log.exception("run not recovered run=%s", live.run_id)

        live.lane.add(turn)

    async def _take_turn(self, live: Run, operation: Operation, release: Release) -> None:
        def let_go() -> None:
            operation.is_released = True
            live.writes(operation)
            release()

        try:
            await live.journal.written_at_last(operation.request_id)
            await self._wait_for_room(live)
            operation.is_begun = True
            outcome = await self._outcome(live, operation, let_go)
            if outcome is None:  # a save that went on beside its run: the restored run makes it again
                self.queue_restore(live)
                return
            await self._finish(live, operation, outcome)
        except Halted:
            operation.is_begun = False
            live.lane.halt()
            return
        except JournalError:  # it ends only with its server; if this was done, the next one knows nothing of it
            operation.is_begun, live.generation = False, 0
            live.lane.halt()
            return
        finally:
            live.wrote(operation)
        if not operation.is_released and self._archives.is_due(live):
            with suppress(JournalError):
                await self._archives.take(live, operation.sequence, release)

    async def _outcome(self, live: Run, operation: Operation, release: Release) -> OperationOutcome | None:
        """None: the worker died, and the run has gone on since."""
        try:
            while True:
                if live.problem is not None:
                    raise ServerFailure(live.problem)
                await self._restored(live, operation)
                try:
                    return await self._execute(live, operation, release)
                except WorkerLost as error:
                    if self.is_stopping:
                        raise Halted from error
                    operation.deaths += error.code != "unsent"
                    if operation.is_released:
                        return None
                    if operation.deaths >= self._limits.deaths:
                        raise ServerFailure(
                            f"{operation.word} killed the worker {operation.deaths} times, so it is not tried again: "
                            f"{error}. The run is as it was before it; make the request smaller."
                        ) from error
        except NotRecovered as error:
            self._give_up(live, error)
            return OperationOutcome(Result.failed(error))
        except RequestError as error:
            return OperationOutcome(Result.failed(error))
        except Halted:
            raise
        except CatalogAway as error:  # only when the server stops: the next one goes on with it
            raise Halted from error
        except Exception as error:  # told to the client, and logged
            log.exception("operation failed run=%s word=%s", live.run_id, operation.word)
            return OperationOutcome(Result.failed(error))

    async def _restored(self, live: Run, before: Operation | None) -> None:
        told = ""
        while True:
            try:
                with self._waiting_for_catalog(live):
                    return await self._recovery.restore(live, before)
            except (CatalogUnavailable, Postponed) as error:
                if self.is_stopping:
                    raise Halted from error
                if str(error) != told:
                    told = str(error)
                    log.warning("run waits to be recovered run=%s error=%s", live.run_id, error)
                live.pause = f"the run cannot be brought back yet: {error}"
                await asyncio.sleep(_ROOM_CHECK_SECONDS)
            except WorkerLost as error:
                if self.is_stopping:
                    raise Halted from error
                live.restore_deaths += 1
                if live.restore_deaths >= _RESTORES:
                    live.restore_deaths = 0
                    raise NotRecovered(
                        f"run {live.run_id!r} could not be brought back in {_RESTORES} attempts: {error}. "
                        "Its journal is kept; start the server again.",
                        is_final=False,
                    ) from error

    async def _execute(self, live: Run, operation: Operation, release: Release) -> OperationOutcome:
        if operation.is_old:
            if operation.attempts >= self._limits.attempts:
                raise ServerFailure(
                    f"{operation.word} was under way when the server died, {operation.attempts} times, "
                    "so it is not tried again. The run is as it was before it."
                )
            live.journal.attempt(operation)
        if operation.damage is not None:
            raise ServerFailure(f"the request was damaged in the journal: {operation.damage}. Send it again.")
        with self._waiting_for_catalog(live):
            async with self._suspects.alone() if operation.deaths else nullcontext():
                return await self._execution.execute(live, operation, release)

    def _waiting_for_catalog(self, live: Run) -> AbstractContextManager[None]:
        """What the run is asked waits with it. All of it may be done twice, as after a crash."""

        def tell(why: str | None) -> None:
            if why is not None and live.pause is None:
                log.warning("run waits for the catalog run=%s error=%s", live.run_id, why)
            live.pause = why

        return waiting_for_catalog(is_over=lambda: self.is_stopping, on_wait=tell)

    async def _finish(self, live: Run, operation: Operation, outcome: OperationOutcome) -> None:
        live.journal.settle(operation, outcome)
        if outcome.result.is_failure or operation.word not in CHANGES_STATE:
            live.debt.operations += 1  # a replay passes it over, and yet only an archive frees its place in the journal
        if outcome.facts:  # which a replay could not find out again, once later operations have changed the world
            await live.journal.flushed()
        if operation.word == "open" and outcome.result.is_failure:
            live.problem = live.problem or f"run {live.run_id!r} could not be made: {outcome.explain()}"
            self.on_unmade(live)
        if operation.promise is not None:
            self._futures.settle(operation.promise, outcome.result)

    async def _wait_for_room(self, live: Run) -> None:
        """A journal that only grows, because no archive can be written, stops the run until one can."""
        try:
            while self._archives.is_crowded(live) and live.generation and not self.is_stopping:
                if live.is_writing or live.is_archiving:
                    await asyncio.sleep(_ROOM_CHECK_SECONDS)
                    continue
                if await self._archives.take(live, live.last_begun):
                    return
                live.pause = "the disk has no room for a recovery archive; make some, and the run goes on"
                await asyncio.sleep(_ROOM_CHECK_SECONDS)
        finally:
            live.pause = None
        if self.is_stopping and self._archives.is_crowded(live):
            raise Halted

    def _give_up(self, live: Run, error: NotRecovered) -> None:
        live.problem = str(error)
        log.error("run not recovered run=%s error=%s", live.run_id, error)
        if error.is_final:
            self.on_problem(live)
