"""Lifecycle: runs are made, parked when nobody uses them, woken when somebody does, and at last unloaded.

A parked run costs disk and no memory. A server that starts finds its runs as if all were parked.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from chockstone.backends.protocol import Worker, WorkerLost
from chockstone.catalog import Catalog, CatalogError, RowMissing, RunRow
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.futures import GRACE_SECONDS, Futures
from chockstone.engine.journal.journal import (
    JournalDamaged,
    JournalError,
    JournalTooNew,
    JournalUnavailable,
    JournalWriter,
)
from chockstone.engine.runs.journal_losses import REASON as LOST_END
from chockstone.engine.runs.journal_losses import JournalLosses
from chockstone.engine.runs.journal_marks import JournalMarks
from chockstone.engine.runs.lanes import Lane
from chockstone.engine.runs.leftover_files import list_journals
from chockstone.engine.runs.live_runs import LiveRuns
from chockstone.engine.runs.operations import Operation, check_plain
from chockstone.engine.runs.performing import Performing
from chockstone.engine.runs.recovery_archives import RecoveryArchives
from chockstone.engine.runs.run import Run, RunFacts
from chockstone.engine.runs.run_journal import JournalContents, RunJournal
from chockstone.engine.storage.archive_names import run_of_stored, stored_session
from chockstone.wire.failures import RequestError, ServerFailure

log = logging.getLogger(__name__)
_PARKED = "it was parked"


class RunRegistry:
    def __init__(
        self,
        backend: Worker,
        catalog: Catalog,
        runs: LiveRuns,
        futures: Futures,
        performing: Performing,
        archives: RecoveryArchives,
        limits: EngineLimits,
        *,
        directory: Path,
        writer: JournalWriter | None,
        marks: JournalMarks,
        losses: JournalLosses,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
        trusts_ages: Callable[[], bool] = lambda: True,
    ) -> None:
        """``directory`` is where journals are; with no ``writer`` none are kept."""
        self._backend = backend
        self._catalog = catalog
        self._runs = runs
        self._futures = futures
        self._performing = performing
        self._archives = archives
        self._limits = limits
        self._directory = directory
        self._writer = writer
        self._marks = marks
        self._losses = losses
        self._in_background = in_background
        self._now = now
        self._monotonic = monotonic
        self._trusts_ages = trusts_ages
        self._doors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by run
        self._coming = 0  # runs that are being made or woken at this moment
        self._is_surveyed = writer is None  # whether all runs of an earlier life that need something are at hand
        performing.on_problem = lambda live: in_background(self._mark_lost(live))
        performing.on_unmade = lambda live: in_background(self._unmake(live))

    async def make(self, facts: RunFacts) -> Run:
        """A new run that nobody has asked for anything yet, or the one that has this id. Raises Busy, BadRequest."""
        check_plain(facts.to_json())
        async with self._door(facts.run_id):
            if (live := self._runs.get(facts.run_id)) is not None:
                return live
            row = await self._find(facts.run_id)
            async with self._room():
                if row is not None and row.state in ("active", "parked") and self._writer is not None:
                    return await self._wake(row)
                return await self._create(facts)

    async def wake(self, run_id: str) -> Run | None:
        """The run, brought back from its journal if it is not at hand; None if there is none to bring back.

        Raises Busy, and ServerFailure when its journal cannot be read.
        """
        if (live := self._runs.get(run_id)) is not None:
            live.used_at = self._monotonic()
            return live
        if self._writer is None:
            if await asyncio.to_thread(self._journal_of(run_id).is_dir):
                raise ServerFailure(
                    f"run {run_id!r} has a journal, and this server was started without: start it with --journal on, "
                    "and the run goes on where it was"
                )
            return None
        async with self._door(run_id):
            if (live := self._runs.get(run_id)) is not None:
                return live
            row = await self._find(run_id)
            if row is None or row.state not in ("active", "parked"):
                return None
            async with self._room():
                return await self._wake(row)

    async def survey(self) -> None:
        """Bring back what an earlier server left active, the last used first."""
        try:
            if self._writer is None:
                kept = set(await asyncio.to_thread(_runs_in, self._directory))
                for row in await self._catalog.runs.list_in_state("active"):
                    if row.run_id not in kept:
                        await self._catalog.runs.set_state(
                            row.run_id, "lost", failure=_lost_without_journal(row.run_id)
                        )
                return
            await self._take_up_lost()
            rows = await self._catalog.runs.list_in_state("active")
            over = await self._catalog.runs.are_over([row.run_id for row in rows])
            for row in sorted(rows, key=lambda row: row.last_request_at, reverse=True):
                try:
                    if over[row.run_id] and await self._has_nothing_to_do(row.run_id):
                        await self._catalog.runs.set_state(row.run_id, "unloaded")
                    elif len(self._runs) < self._limits.runs:
                        await self.wake(row.run_id)
                    else:
                        await self._catalog.runs.set_state(row.run_id, "parked")
                except (Busy, RequestError) as error:
                    log.warning("run not woken run=%s error=%s", row.run_id, error)
        finally:
            self._is_surveyed = True

    async def _take_up_lost(self) -> None:
        """Runs whose journal had lost its end go on if that was put back, or if they are to go on without."""
        assert self._writer is not None
        for row in await self._catalog.runs.list_in_state("lost"):
            receipts = await self._catalog.recoveries.list(row.run_id, limit=1)
            if not receipts or receipts[0].reason != LOST_END or not receipts[0].lost:
                continue  # it is lost for another reason
            async with self._door(row.run_id):
                try:
                    journal, past = await RunJournal.reopen(self._journal_of(row.run_id), self._writer)
                    await journal.close()
                    if await self._losses.is_over(RunFacts.from_json(past.facts), journal):
                        await self._catalog.runs.set_state(row.run_id, "active")
                except (JournalError, Busy, KeyError, TypeError, ValueError) as error:
                    log.warning("lost run not taken up run=%s error=%s", row.run_id, error)

    async def _has_nothing_to_do(self, run_id: str) -> bool:
        """Whether it would be brought back only to be closed. One whose journal cannot be read may have more to do."""
        assert self._writer is not None
        async with self._door(run_id):
            if self._runs.get(run_id) is not None:
                return False
            try:
                journal, _ = await RunJournal.reopen(self._journal_of(run_id), self._writer)
            except JournalError:
                return False
            await journal.close()
        return all(each.trace is not None or each.word == "close" for each in journal.operations)

    def needs(self, archive: str) -> bool:
        """Whether a run would have to load this checkpoint again to come back."""
        return not self._is_surveyed or any(archive in live.journal.needed_archives() for live in self._runs)

    async def park(self, live: Run) -> bool:
        """Write the run down and free its memory; whether that is done. It comes back by itself."""
        if not live.journal.is_kept or live.problem is not None or live.is_closing:
            return False
        async with self._door(live.run_id):
            if self._runs.get(live.run_id) is not live or not live.lane.is_idle():
                return False
            parked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            async def turn(_: Callable[[], None]) -> None:
                try:
                    parked.set_result(await self.write_down(live))
                except JournalError:  # it is closed already, or takes nothing
                    parked.set_result(False)

            if live.lane.is_halted:  # no turn would ever come; what waits is in the journal
                parked.set_result(await self.write_down(live))
            else:
                live.lane.add(turn)
            if not await parked or not live.lane.is_idle():
                return False
            self._runs.remove(live)
            await live.journal.close()
            with suppress(CatalogError):
                await self._marks.flush([live])
                await self._catalog.runs.set_state(live.run_id, "parked")
            log.info("run parked run=%s", live.run_id)
            return True

    async def discard(self, live: Run) -> None:
        """It is over, and cannot be closed in its turn, since it does not go on."""
        live.is_closing = True
        await live.lane.drained()
        self._runs.remove(live)
        await live.journal.close()
        await self.unload(live.run_id)

    def closed(self, live: Run, closing: Operation) -> None:
        """It was unloaded: what would bring it back goes, and its journal when nobody asks for the last results."""
        self._runs.remove(live)
        self._in_background(self._archives.drop_all(live.run_id))
        if closing.promise is not None:
            closing.promise.on_gone = lambda: self._in_background(self._remove_journal(live))

    async def unload(self, run_id: str) -> None:
        """A parked run is over, and need not be woken for that."""
        async with self._door(run_id):
            if self._runs.get(run_id) is None:
                await self._catalog.runs.set_state(run_id, "unloaded")
                await asyncio.to_thread(shutil.rmtree, self._journal_of(run_id), ignore_errors=True)
                await self._marks.forget(run_id)
                await self._archives.drop_all(run_id)

    async def results_of(self, run_id: str) -> None:
        """Have the results of a run at hand that was unloaded a moment ago, by an earlier server."""
        if self._writer is None or not await asyncio.to_thread(self._journal_of(run_id).is_dir):
            return
        async with self._door(run_id):
            with suppress(JournalError, KeyError, TypeError, ValueError):
                journal, past = await RunJournal.reopen(self._journal_of(run_id), self._writer)
                await self._give_results(str(past.facts["owner"]), journal, past)
                await journal.close()

    async def sweep(self) -> None:
        """Remove the journals of runs that have been over for a while: nobody asks for their last results."""
        if self._writer is None or not self._trusts_ages():
            return
        run_ids = await asyncio.to_thread(_runs_in, self._directory, min_age_seconds=GRACE_SECONDS)
        journals = set(await asyncio.to_thread(_runs_in, self._directory))
        marked = await asyncio.to_thread(self._marks.list_runs)
        over = await self._catalog.runs.are_over([*run_ids, *(run_id for run_id in marked if run_id not in journals)])
        for run_id in [run_id for run_id, is_over in over.items() if is_over]:
            async with self._door(run_id):
                if self._runs.get(run_id) is None:
                    await asyncio.to_thread(shutil.rmtree, self._journal_of(run_id), ignore_errors=True)
                    await self._marks.forget(run_id)
                    await self._archives.drop_all(run_id)

    async def _create(self, facts: RunFacts) -> Run:
        live = Run(facts, Lane(), RunJournal(None, None), used_at=self._monotonic())
        if self._writer is not None:
            await self._archives.drop_all(facts.run_id)  # of a run that had this id before and is lost
            try:
                live.journal = await RunJournal.create(
                    self._journal_of(facts.run_id), self._writer, live.head(), self._marks.file_of(facts.run_id)
                )
            except (JournalError, OSError) as error:
                raise ServerFailure(f"no journal can be made for run {facts.run_id!r}: {error}") from error
        self._runs.add(live)
        return live

    async def _wake(self, row: RunRow) -> Run:
        assert self._writer is not None
        try:
            marks = self._marks.file_of(row.run_id)
            journal, past = await RunJournal.reopen(self._journal_of(row.run_id), self._writer, marks)
            facts = RunFacts.from_json(past.facts)
        except JournalTooNew as error:
            raise ServerFailure(
                f"run {row.run_id!r} was written by a newer version; start that one: {error}"
            ) from error
        except JournalUnavailable as error:
            raise Busy(
                f"run {row.run_id!r} cannot be brought back at the moment, and nothing of it is lost: {error}"
            ) from error
        except (JournalError, KeyError, TypeError, ValueError) as error:
            failure = f"the journal of run {row.run_id!r} cannot be read: {error}. Resume it from its last checkpoint."
            await self._catalog.runs.set_state(row.run_id, "lost", failure=failure)
            raise ServerFailure(failure) from error
        live = Run(facts, Lane(), journal, past.numbers, used_at=self._monotonic(), seals=dict(past.seals))
        try:
            live.lost = await self._losses.check(live)
        except BaseException:
            await journal.close()
            raise
        if row.state == "parked":
            live.restore_reason = _PARKED
            await self._catalog.runs.set_state(row.run_id, "active")
        await self._give_results(live.owner, journal, past)
        self._runs.add(live)
        self._performing.queue_restore(live)
        for operation in journal.operations:
            if operation.trace is not None:
                continue
            self._performing.promise(live, operation)
            live.is_closing = live.is_closing or operation.word == "close"
            if not operation.is_begun:
                self._performing.queue(live, operation)
        return live

    async def _give_results(self, owner: str, journal: RunJournal, past: JournalContents) -> None:
        for operation, record in past.results:
            try:
                result = await journal.read_result(record)
            except JournalDamaged as error:
                log.warning("result not kept request=%s error=%s", operation.request_id, error)
                operation.trace = None
                continue
            promise = self._futures.restore(owner, operation.request_id, result)
            promise.on_gone = lambda operation=operation: journal.gone(operation)

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """For one more run, which is at hand at the end. Raises Busy."""
        self._coming += 1
        try:
            await self._make_room()
            yield
        finally:
            self._coming -= 1

    async def _make_room(self) -> None:
        """Park what was not used for longest, if there are too many at hand. Raises Busy if all are busy."""
        if len(self._runs) + self._coming <= self._limits.runs:
            return
        for live in sorted(self._runs, key=lambda live: live.used_at):
            if live.problem is not None and live.lane.is_idle():  # it needs no place, and its row says why
                self._runs.remove(live)
                await live.journal.close()
                return
            if live.lane.is_idle() and await self.park(live):
                return
        raise Busy(
            f"{len(self._runs)} runs are loaded, and no more may be: finish a session or unload a model, "
            "or start the server with a higher max_runs"
        )

    async def write_down(self, live: Run) -> bool:
        """All that it is goes into an archive, and out of memory; whether that worked. In its lane, or while that is
        halted."""
        if not live.generation or live.generation != self._backend.generation or not live.journal.is_kept:
            return True  # no worker has it, or nobody will
        if not self._backend.is_ready:
            return False  # its worker died a moment ago; nobody waits for the next one
        if live.debt.operations and not await self._archives.take(live, live.last_begun):
            return False
        with suppress(WorkerLost):
            await self._backend.close_run(live.run_id, generation=live.generation)
        live.generation, live.restore_reason = 0, _PARKED
        return True

    async def enter_unknown(self) -> None:
        """Make the rows again of runs that only their journals remember, since the catalog was lost."""
        if self._writer is None:
            return
        for run_id in await self._unused():
            if self._runs.get(run_id) is None:
                async with self._door(run_id):
                    await self._find(run_id)

    async def _unused(self) -> list[str]:
        """The runs with a journal that are neither active nor parked, as far as the catalog knows."""
        run_ids = await asyncio.to_thread(_runs_in, self._directory)
        rows = [row for state in ("active", "parked") for row in await self._catalog.runs.list_in_state(state)]
        return sorted(set(run_ids) - {row.run_id for row in rows})

    async def _find(self, run_id: str) -> RunRow | None:
        """Its row; one that only its journal remembers is entered first."""
        with suppress(RowMissing):
            return await self._catalog.runs.get(run_id)
        if self._writer is not None and await asyncio.to_thread(self._journal_of(run_id).is_dir):
            await self._enter(run_id)
            with suppress(RowMissing):
                return await self._catalog.runs.get(run_id)
        return None

    async def _enter(self, run_id: str) -> None:
        assert self._writer is not None
        try:
            journal, past = await RunJournal.reopen(self._journal_of(run_id), self._writer)
            facts = RunFacts.from_json(past.facts)
            await journal.close()
            if facts.run_id != run_id or not _is_worth_entering(journal.operations):
                return
            now = self._now()
            await self._catalog.sessions.enter(
                facts.session_id, owner=facts.owner, now=now, project_id=facts.project_id
            )
            await self._catalog.runs.enter(
                run_id,
                owner=facts.owner,
                base_model=facts.base_model,
                spec=facts.spec,
                optimizer_config=facts.optimizer,
                user_metadata=facts.user_metadata,
                project_id=facts.project_id,
                state="active",
                now=now,
            )
            await self._enter_samplers(facts, journal)
            log.warning("run entered again from its journal run=%s", run_id)
        except (JournalError, CatalogError, OSError, KeyError, TypeError, ValueError) as error:
            log.warning("journal not understood run=%s error=%s", run_id, error)

    async def _enter_samplers(self, facts: RunFacts, journal: RunJournal) -> None:
        for operation in journal.operations:
            if operation.word == "snapshot" and operation.trace is not None and not operation.trace.is_failure:
                await self._catalog.samplers.create(
                    facts.session_id,
                    operation.values["sampler_seq_id"],
                    owner=facts.owner,
                    base_model=facts.base_model,
                    archive=operation.trace.facts["archive"],
                    now=self._now(),
                )

    async def _mark_lost(self, live: Run) -> None:
        """It takes no room any longer; whoever asks for it is told what its row says."""
        await self._catalog.runs.set_state(live.run_id, "lost", failure=live.problem)
        async with self._door(live.run_id):
            while not live.lane.is_idle():
                await live.lane.drained()
            self._runs.remove(live)
            await live.journal.close()

    async def _unmake(self, live: Run) -> None:
        """It could not be made: leave nothing loaded, and say why in its row, if there is one."""
        async with self._door(live.run_id):  # whoever asks for it again waits, and finds nothing of it
            self._runs.remove(live)
            if self._runs.get(live.run_id) is not None:
                return  # it was made anew meanwhile
            with suppress(CatalogError):
                await self._catalog.runs.set_state(live.run_id, "lost", failure=live.problem)
            with suppress(RequestError):
                await self._backend.close_run(live.run_id, generation=self._backend.generation)

    async def _remove_journal(self, live: Run) -> None:
        async with self._door(live.run_id):
            row = await self._find(live.run_id)
            if self._runs.get(live.run_id) is None and (row is None or row.state == "unloaded"):  # not made anew
                await live.journal.remove()
                await self._marks.forget(live.run_id)

    def _journal_of(self, run_id: str) -> Path:
        return self._directory / stored_session(run_id)

    def _door(self, run_id: str) -> asyncio.Lock:
        return self._doors.setdefault(run_id, asyncio.Lock())


def _runs_in(directory: Path, *, min_age_seconds: float = 0.0) -> list[str]:
    """Whose journals are there, and were not begun or trimmed since."""
    horizon = time.time() - min_age_seconds if min_age_seconds else float("inf")
    found = []
    for path in list_journals(directory):
        with suppress(FileNotFoundError):  # it was removed a moment ago
            if path.stat().st_mtime <= horizon and (run_id := run_of_stored(path.name)) is not None:
                found.append(run_id)
    return found


def _is_worth_entering(operations: Sequence[Operation]) -> bool:
    """Not if it never came to be, or is over."""
    if not operations or operations[-1].word == "close":
        return False
    opening = operations[0].trace if operations[0].word == "open" else None
    return opening is None or not opening.is_failure


def _lost_without_journal(run_id: str) -> str:
    return (
        f"run {run_id!r} is not loaded any more: the server was restarted, and keeps no journal. "
        "Resume it with create_training_client_from_state_with_optimizer and its last checkpoint."
    )
