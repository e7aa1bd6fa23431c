"""The runner: the turn of one operation in its run's lane.

The operation is durable first; the run is recovered if the worker does not have it; the operation is executed; its
result is journalled and sent to the client. Then a recovery archive is written if one is due.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final

from chockstone.backends.protocol import WorkerLost
from chockstone.catalog.database.retry import waiting_for_catalog
from chockstone.catalog.errors import CatalogAway, CatalogUnavailable
from chockstone.engine.background import Shutdown
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.futures import Futures, Promise
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.journal.journal import JournalDamaged, JournalError
from chockstone.engine.journal.writer import Stalled
from chockstone.engine.queue_shares import QueueShares
from chockstone.engine.runs.commands import CloseRun, Command, OpenRun, Save, api_name
from chockstone.engine.runs.executor import Executor, Release
from chockstone.engine.runs.journal_contents import JournalContents
from chockstone.engine.runs.operations import (
    Operation,
    OperationOutcome,
    OperationRequest,
    check_plain,
    request_id_of,
)
from chockstone.engine.runs.recovery.archives import RecoveryArchives
from chockstone.engine.runs.recovery.recovery import Halted, NotRecovered, Postponed, RunRecovery
from chockstone.engine.runs.run import Run
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.telemetry import tracing
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.origin import RequestOrigin
from chockstone.telemetry.timings import RecentTimings, WorkTiming
from chockstone.wire.failures import RequestError, ServerFailure

log = logging.getLogger(__name__)
_MAX_RECOVERIES: Final = 10  # of one run, each ended by a worker's death
_RETRY_SECONDS: Final = 1.0


class Settlement:
    """Ends operations: journals the result, then sends it to the client."""

    def __init__(
        self,
        futures: Futures,
        history: StepHistory,
        instruments: Instruments,
        *,
        on_settled: Callable[[Run, Operation, int], None],
        on_open_failed: Callable[[Run], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_settled`` is called with each operation that has ended, and the new tokens that it trained."""
        self._futures = futures
        self._history = history
        self._instruments = instruments
        self._monotonic = monotonic
        self._on_settled = on_settled
        self._on_open_failed = on_open_failed

    async def settle(self, run: Run, operation: Operation, outcome: OperationOutcome) -> None:
        new_tokens = run.journal.settle(operation, outcome)
        self._measure(operation, outcome, new_tokens)
        self._on_settled(run, operation, new_tokens)
        if outcome.measured is not None:
            self._history.record(run.history, operation.sequence, outcome.measured)
        run.note_settled(operation)
        if outcome.result.is_failure or not operation.changes_state:
            run.add_to_backlog()  # a replay skips it, but only an archive frees its place in the journal
        if outcome.facts:  # a replay cannot find them out again
            await run.journal.flushed()
        if isinstance(operation.command, OpenRun) and outcome.result.is_failure:
            run.lose(f"run {run.run_id!r} could not be made: {outcome.explain()}")
            self._on_open_failed(run)
        if operation.promise is not None:
            self._futures.settle(operation.promise, outcome.result, operation=operation.command.name)

    def _measure(self, operation: Operation, outcome: OperationOutcome, new_tokens: int) -> None:
        seconds = None if operation.begun_at is None else self._monotonic() - operation.begun_at
        self._instruments.operation_ended(api_name(operation.command), outcome.result.outcome, seconds=seconds)
        if new_tokens:
            self._instruments.trained(new_tokens)


class Runner:
    def __init__(
        self,
        futures: Futures,
        limits: EngineLimits,
        executor: Executor,
        recovery: RunRecovery,
        archives: RecoveryArchives,
        settlement: Settlement,
        shutdown: Shutdown,
        instruments: Instruments,
        *,
        timings: RecentTimings,
        on_lost: Callable[[Run], None],
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``on_lost`` is called with a run that no server can recover. ``timings`` gets each operation that ended."""
        self._futures = futures
        self._limits = limits
        self._executor = executor
        self._recovery = recovery
        self._archives = archives
        self._settlement = settlement
        self._shutdown = shutdown
        self._instruments = instruments
        self._on_lost = on_lost
        self._monotonic = monotonic
        self._now = now
        self._timings = timings
        self._queued_bytes = QueueShares(limits.queued_bytes)

    async def submit(
        self,
        run: Run,
        seq_id: int | None,
        command: Command,
        body: bytes | None = None,
        *,
        loss: Mapping[str, Any] | None = None,  # Any: plain JSON
        is_last: bool = False,
    ) -> str:
        """Queue a command and return its request id once it is durable; the same ``seq_id`` gets the same id.

        Raises Busy when too much is queued, unless it is the run's last command; Stalled when the journal cannot be
        written in time.
        """
        if seq_id is not None and run.used_seq_ids.has(seq_id):
            await run.journal.written(known := request_id_of(run.run_id, seq_id))
            return known
        if run.journal.is_closed:
            raise Busy(f"run {run.run_id!r} is being parked; try again in a moment")
        if run.is_held:
            raise Stalled(run.state.reason)  # a server that serves the base model takes the same request
        check_plain(command.to_json())
        if not self._queued_bytes.has_room(run.owner, len(body or b"")):
            raise Busy("the server holds as many request bytes of yours as it may; try again in a moment")
        if run.lane.waiting >= self._limits.operations_per_run and not is_last:
            raise Busy(f"run {run.run_id!r} has {run.lane.waiting} operations waiting; wait for some to end")
        run.touch(self._monotonic())
        if seq_id is not None:
            run.used_seq_ids.add(seq_id)
        promise = self._futures.promise(run.owner, None if seq_id is None else request_id_of(run.run_id, seq_id))
        span = _span_of(run, command, promise.request_id)
        with span.current():  # what the journal and the worker get of the trace
            request = OperationRequest(command, promise.request_id, seq_id, body, loss, origin=RequestOrigin.here())
        operation = run.journal.add(request)
        _attach(run, operation, promise)
        run.note_submitted(operation, at=self._monotonic())
        self._queue(run, operation, span)
        with span.part("journal.append"):
            await run.journal.written(operation.request_id)
        return operation.request_id

    def resubmit(self, run: Run) -> None:
        """Recover a run of an earlier server, and queue its operations that were not begun."""
        self.queue_recovery(run)
        for operation in run.journal.operations:
            if operation.outcome is not None:
                continue
            _attach(run, operation, self._futures.promise(run.owner, operation.request_id or None))
            run.note_submitted(operation, at=self._monotonic())
            if isinstance(operation.command, CloseRun):
                run.begin_closing()
            if not operation.is_begun:
                with operation.request.origin.resumed():
                    self._queue(run, operation, _span_of(run, operation.command, operation.request_id))

    async def offer_results(self, owner: str, journal: RunJournal, contents: JournalContents) -> None:
        """Make the results of an earlier server available that clients may still ask for."""
        for operation, record in contents.results:
            try:
                result = await journal.read_result(record)
            except JournalDamaged as error:
                log.warning("result damaged in journal request=%s error=%s", operation.request_id, error)
                operation.forget_result()
                continue
            promise = self._futures.recover(owner, operation.request_id, result)
            promise.when_gone(partial(journal.gone, operation))

    @property
    def queued_bytes(self) -> int:
        """Size of the bodies of all operations that wait or run."""
        return self._queued_bytes.total

    def _queue(self, run: Run, operation: Operation, span: tracing.Span) -> None:
        """``span`` ends with the operation."""
        size_bytes = len(operation.request.body or b"")
        self._queued_bytes.add(run.owner, size_bytes)
        waiting, queued_at, asked_at = span.part("lane.wait"), self._monotonic(), self._now()

        async def turn(release: Release) -> None:
            waiting.end()
            begun_at = self._now()
            try:
                with span:
                    await self._take_turn(run, operation, release, queued_at=queued_at)
                    outcome = operation.outcome
                    if outcome is None:
                        span.set(postponed=True)  # to a recovery, or to the next server
                    elif outcome.is_failure:
                        span.fail("the operation failed; the client has the reason")
                self._note_timing(run, operation, asked_at, begun_at)
                await self._write_archive_if_due(run, operation, release)
            finally:
                self._queued_bytes.remove(run.owner, size_bytes)

        run.lane.add(turn)

    def _note_timing(self, run: Run, operation: Operation, queued_at: float, begun_at: float) -> None:
        command, outcome = operation.command, operation.outcome
        details: dict[str, str | int | float] = {"request": operation.request_id}
        if isinstance(command, Save):
            details["path"] = str(command.path)
        if outcome is None or outcome.is_failure:
            details["outcome"] = "postponed" if outcome is None else "failed"
        self._timings.add(
            run.run_id,
            WorkTiming(api_name(command), queued_at, begun_at, self._now(), operation.sequence, details),
        )

    def queue_recovery(self, run: Run) -> None:
        """Recover the run although no operation asks for it: one will soon, or a save must be made again."""

        async def turn(release: Release) -> None:
            try:
                await self._recover(run, before=None)
                if self._archives.is_due(run):  # what was replayed need not be replayed again
                    await self._archives.take(run, run.last_begun, release)
            except (Halted, JournalError):
                run.lane.halt()
            except NotRecovered:  # logged already
                pass
            except RequestError as error:  # the next operation tries again
                log.warning("run not recovered run=%s error=%s", run.run_id, error)
            except Exception:  # the same
                log.exception("run not recovered run=%s", run.run_id)

        run.lane.add(turn)

    async def _take_turn(self, run: Run, operation: Operation, release: Release, *, queued_at: float) -> None:
        def let_go() -> None:
            operation.release()
            run.begin_save(operation)
            release()

        try:
            await run.journal.written_at_last(operation.request_id)
            await self._wait_for_journal_room(run)
            self._begin(operation, queued_at)
            outcome = await self._recover_and_execute(run, operation, let_go)
            if outcome is None:  # a save whose worker died: the recovery makes it again
                self.queue_recovery(run)
                return
            await self._settlement.settle(run, operation, outcome)
        except (Halted, JournalError) as error:  # only at shutdown: the next server executes it
            operation.postpone()
            if isinstance(error, JournalError):  # it may be executed, but the journal does not have its result
                run.note_unloaded()
            run.lane.halt()
        finally:
            run.end_save(operation)

    async def _write_archive_if_due(self, run: Run, operation: Operation, release: Release) -> None:
        if operation.outcome is not None and not operation.is_released and self._archives.is_due(run):
            with suppress(JournalError), tracing.span("recovery.archive"):
                await self._archives.take(run, operation.sequence, release)

    def _begin(self, operation: Operation, queued_at: float) -> None:
        now = self._monotonic()
        operation.begin(at=now)
        self._instruments.operation_began(api_name(operation.command), waited_seconds=now - queued_at)

    async def _recover_and_execute(self, run: Run, operation: Operation, release: Release) -> OperationOutcome | None:
        """None: the worker died while the lane had continued. Raises Halted when the server stops."""
        while True:
            try:
                run.refuse_if_lost()
                await self._recover(run, before=operation)
                return await self._execute(run, operation, release)
            except WorkerLost as error:
                self._halt_if_stopping(error)
                operation.count_death(was_sent=error.code != "unsent")
                if operation.is_released:
                    return None
                if operation.deaths >= self._limits.deaths:
                    return OperationOutcome.failed(
                        ServerFailure(
                            f"{operation.command.name} killed the worker {operation.deaths} times, so it is not tried "
                            f"again: {error}. The run is as it was before it; make the request smaller."
                        )
                    )
            except (Halted, CatalogAway) as error:  # the catalog is waited for until the server stops
                raise Halted from error
            except Exception as error:  # reported to the client
                if not isinstance(error, RequestError):
                    log.exception("operation failed run=%s command=%s", run.run_id, operation.command.name)
                return OperationOutcome.failed(error)

    async def _execute(self, run: Run, operation: Operation, release: Release) -> OperationOutcome:
        request = operation.request
        if request.is_old:
            if operation.attempts >= self._limits.attempts:
                raise ServerFailure(
                    f"{request.command.name} was under way when the server died, {operation.attempts} times, "
                    "so it is not tried again. The run is as it was before it."
                )
            run.journal.attempt(operation)
        if request.damage is not None:
            raise ServerFailure(f"the request was damaged in the journal: {request.damage}. Send it again.")
        with self._waiting_for_catalog(run):
            return await self._executor.execute(run, operation, release)

    async def _recover(self, run: Run, *, before: Operation | None) -> None:
        """Have the worker hold the run as it was before the operation. Raises Halted, and NotRecovered with the run
        lost."""
        try:
            await self._recover_with_retries(run, before)
        except NotRecovered as error:
            run.lose(str(error))
            self._instruments.recovery_failed()
            log.error("run not recovered run=%s error=%s", run.run_id, error)
            if error.is_final:
                self._on_lost(run)
            raise

    async def _recover_with_retries(self, run: Run, before: Operation | None) -> None:
        logged = ""
        while True:
            try:
                with self._waiting_for_catalog(run):
                    return await self._recovery.recover(run, before=before)
            except (CatalogUnavailable, Postponed) as error:
                self._halt_if_stopping(error)
                if str(error) != logged:
                    logged = str(error)
                    log.warning("run waits to be recovered run=%s error=%s", run.run_id, error)
                run.wait(f"the run cannot be recovered yet: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
            except WorkerLost as error:
                self._halt_if_stopping(error)
                if run.count_recovery_death() >= _MAX_RECOVERIES:
                    run.end_recovery()
                    raise NotRecovered(
                        f"run {run.run_id!r} could not be recovered in {_MAX_RECOVERIES} attempts: {error}. "
                        "Its journal is kept; start the server again.",
                        is_final=False,
                    ) from error

    async def _wait_for_journal_room(self, run: Run) -> None:
        """A journal that is full because no recovery archive can be written stops the run until one can be."""
        try:
            while self._archives.is_crowded(run) and run.generation and not self._shutdown.has_begun:
                if run.is_saving or run.is_archiving:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if await self._archives.take(run, run.last_begun):
                    return
                run.wait("the disk has no room for a recovery archive; free some space, and the run continues")
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            run.resume()
        if self._shutdown.has_begun and self._archives.is_crowded(run):
            raise Halted

    def _waiting_for_catalog(self, run: Run) -> AbstractContextManager[None]:
        """Inside, calls wait while the catalog is away. All of them may be made twice, as after a crash."""

        def tell(why: str | None) -> None:
            if why is None:
                run.resume()
                return
            if run.waits_for is None:
                log.warning("run waits for the catalog run=%s error=%s", run.run_id, why)
            run.wait(why)

        return waiting_for_catalog(is_over=lambda: self._shutdown.has_begun, on_wait=tell)

    def _halt_if_stopping(self, error: Exception) -> None:
        if self._shutdown.has_begun:
            raise Halted from error


def _span_of(run: Run, command: Command, request_id: str) -> tracing.Span:
    return tracing.span(f"operation.{api_name(command)}", run=run.run_id, request=request_id, owner=run.owner)


def _attach(run: Run, operation: Operation, promise: Promise) -> None:
    operation.attach(promise)
    promise.when_gone(partial(run.journal.gone, operation))
