"""The registry: creates runs, parks runs that no client uses, and wakes them when a client does.

A parked run takes disk space and no memory. A server that starts treats the runs of the last server as parked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from chockstone.catalog import Catalog, CatalogError, RowMissing, RunRow
from chockstone.engine.config import Busy
from chockstone.engine.history.run_history import RunHistory
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.journal.journal import JournalError, JournalTooNew, JournalUnavailable
from chockstone.engine.progress import ProgressRecorder
from chockstone.engine.runs.commands import CloseRun
from chockstone.engine.runs.journal_contents import JournalContents
from chockstone.engine.runs.operations import check_plain
from chockstone.engine.runs.recovery.archives import RecoveryArchives
from chockstone.engine.runs.recovery.catalog_rebuild import CatalogRebuild
from chockstone.engine.runs.recovery.journal_losses import JournalLosses, JournalMarks
from chockstone.engine.runs.recovery.run_usage import RunUsage
from chockstone.engine.runs.run import PARKED, RESTARTED, LiveRuns, Run, RunFacts, journal_head, progress_of
from chockstone.engine.runs.run_journal import RunJournal, RunJournals
from chockstone.engine.runs.runner import Runner
from chockstone.engine.runs.used_seq_ids import UsedSeqIds
from chockstone.wire.failures import RequestError, ServerFailure

log = logging.getLogger(__name__)


class RunRegistry:
    def __init__(
        self,
        catalog: Catalog,
        runs: LiveRuns,
        journals: RunJournals,
        runner: Runner,
        archives: RecoveryArchives,
        rebuild: CatalogRebuild,
        marks: JournalMarks,
        progress: ProgressRecorder,
        losses: JournalLosses,
        usage: RunUsage,
        history: StepHistory,
        *,
        max_runs: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._runs = runs
        self._journals = journals
        self._runner = runner
        self._archives = archives
        self._rebuild = rebuild
        self._marks = marks
        self._progress = progress
        self._losses = losses
        self._usage = usage
        self._history = history
        self._max_runs = max_runs
        self._monotonic = monotonic
        self._arriving = 0  # runs that are being created or woken at this moment
        if not journals.are_kept:
            runs.note_all_woken()  # there are none to wake

    async def create(self, facts: RunFacts) -> Run:
        """A new run without operations, or the run that has this id. Raises Busy, BadRequest."""
        check_plain(facts.to_json())
        async with self._runs.lock(facts.run_id):
            if (run := self._runs.get(facts.run_id)) is not None:
                return run
            row = await self._rebuild.find_row(facts.run_id)
            async with self._room():
                if row is not None and row.state in ("active", "parked") and self._journals.are_kept:
                    return await self._wake(row)
                return await self._create(facts)

    async def wake(self, run_id: str) -> Run | None:
        """The run, woken from its journal if it is not live; None if there is no run to wake.

        Raises Busy, and ServerFailure when its journal cannot be read.
        """
        if (run := self._runs.get(run_id)) is not None:
            run.touch(self._monotonic())
            return run
        if not self._journals.are_kept:
            if await self._journals.exists(run_id):
                raise ServerFailure(
                    f"run {run_id!r} has a journal, and this server was started without: start it with --journal on, "
                    "and the run continues from its last operation"
                )
            return None
        async with self._runs.lock(run_id):
            if (run := self._runs.get(run_id)) is not None:
                return run
            row = await self._rebuild.find_row(run_id)
            if row is None or row.state not in ("active", "parked"):
                return None
            async with self._room():
                return await self._wake(row)

    async def wake_all(self) -> None:
        """Wake the runs that an earlier server left active, the last used first."""
        try:
            if not self._journals.are_kept:
                await self._lose_runs_without_journal()
                return
            await self._reactivate_lost()
            rows = await self._catalog.runs.list_in_state("active")
            over = await self._catalog.runs.are_over([row.run_id for row in rows])
            for row in sorted(rows, key=lambda row: row.last_request_at, reverse=True):
                try:
                    if over.get(row.run_id) and await self._has_nothing_to_do(row.run_id):
                        await self._read_history(row.run_id)
                        await self._catalog.runs.set_state(row.run_id, "unloaded")
                    elif len(self._runs) < self._max_runs:
                        await self.wake(row.run_id)
                    else:  # it stays active: the next server must know, too, that it is not recovered
                        await self._read_history(row.run_id)
                        await self._note_unrecovered(row.run_id)
                except (Busy, RequestError, RowMissing) as error:  # missing: its owner removed it meanwhile
                    log.warning("run not woken run=%s error=%s", row.run_id, error)
                    await self._note_unrecovered(row.run_id)
        finally:
            self._runs.note_all_woken()

    async def park(self, run: Run) -> bool:
        """Free the run's memory; whether that is done. The next request wakes it."""
        if not run.journal.is_kept or run.is_lost or run.is_closing:
            return False
        async with self._runs.lock(run.run_id):
            if self._runs.get(run.run_id) is not run or not run.lane.is_idle():
                return False
            parked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            async def turn(_: Callable[[], None]) -> None:
                try:
                    parked.set_result(await self._archives.unload(run))
                except JournalError:  # it is closed already, or cannot be written
                    parked.set_result(False)

            if run.lane.is_halted:  # no turn would start; the operations that wait are in the journal
                parked.set_result(await self._archives.unload(run))
            else:
                run.lane.add(turn)
            if not await parked or not run.lane.is_idle():
                return False
            await self._history.sync(run.history)
            self._runs.remove(run)
            await run.journal.close()
            with suppress(CatalogError):
                await self._marks.flush([run])
                await self._progress.flush_ended(run.run_id, run.progress)
                await self._catalog.runs.set_state(run.run_id, "parked")
            log.info("run parked run=%s", run.run_id)
            return True

    async def load_results(self, run_id: str) -> None:
        """Make the results of a run available that an earlier server unloaded a moment ago."""
        if not self._journals.are_kept or not await self._journals.exists(run_id):
            return
        async with self._runs.lock(run_id):
            with suppress(JournalError, KeyError, TypeError, ValueError):
                journal, contents = await self._journals.reopen(run_id, is_marked=False)
                await self._runner.offer_results(str(contents.facts["owner"]), journal, contents)
                await journal.close()

    async def _lose_runs_without_journal(self) -> None:
        kept = set(await self._journals.list_runs())
        for row in await self._catalog.runs.list_in_state("active"):
            failure = (
                f"run {row.run_id!r} is not loaded any more: the server was restarted, and keeps no journal. "
                "Resume it with create_training_client_from_state_with_optimizer and its last checkpoint."
            )
            async with self._runs.lock(row.run_id):
                if row.run_id not in kept and self._runs.get(row.run_id) is None:  # a new run may be in the list, too
                    await self._catalog.runs.set_state(row.run_id, "lost", failure=failure)

    async def _reactivate_lost(self) -> None:
        """Runs whose journal had lost its end continue if it was put back, or if they are to continue without it."""
        for row in await self._catalog.runs.list_in_state("lost"):
            if not await self._losses.was_found_in(row.run_id):
                continue  # it is lost for another reason
            async with self._runs.lock(row.run_id):
                try:
                    journal, contents = await self._journals.read(row.run_id)
                    if await self._losses.may_continue(RunFacts.from_json(contents.facts), journal):
                        await self._catalog.runs.set_state(row.run_id, "active")
                except (JournalError, Busy, KeyError, TypeError, ValueError) as error:
                    log.warning("lost run not reactivated run=%s error=%s", row.run_id, error)

    async def _note_unrecovered(self, run_id: str) -> None:
        """Keep the checkpoints that the run will load again when it is woken."""
        async with self._runs.lock(run_id):
            if self._runs.get(run_id) is not None:
                return
            try:
                journal, _ = await self._journals.read(run_id)
            except (JournalUnavailable, JournalTooNew):
                self._runs.note_unrecovered(run_id, None)
            except JournalError:  # no server can recover it
                self._runs.note_ended(run_id)
            else:
                self._runs.note_unrecovered(run_id, frozenset(journal.needed_archives()))

    async def _has_nothing_to_do(self, run_id: str) -> bool:
        """Whether it would be woken only to be closed. False if its journal cannot be read."""
        async with self._runs.lock(run_id):
            if self._runs.get(run_id) is not None:
                return False
            try:
                _, contents = await self._journals.read(run_id)
            except JournalError:
                return False
        return all(each.outcome is not None or isinstance(each.command, CloseRun) for each in contents.operations)

    async def _create(self, facts: RunFacts) -> Run:
        if self._journals.are_kept:  # a lost run that had this id may have left these
            await self._archives.drop_all(facts.run_id)
            await self._usage.recover(facts.run_id)
            await self._usage.flush(facts.run_id)
        try:
            journal = await self._journals.create(facts.run_id, journal_head(facts, UsedSeqIds(), {}))
        except (JournalError, OSError) as error:
            raise ServerFailure(f"no journal can be made for run {facts.run_id!r}: {error}") from error
        history = await self._history.create(facts.run_id, birth=facts.birth)
        run = Run(facts, journal, history, used_at=self._monotonic())
        self._runs.add(run)
        return run

    async def _wake(self, row: RunRow) -> Run:
        try:
            journal, contents = await self._journals.reopen(row.run_id)
            facts = RunFacts.from_json(contents.facts)
        except JournalTooNew as error:
            raise ServerFailure(
                f"run {row.run_id!r} was written by a newer version; start that one: {error}"
            ) from error
        except JournalUnavailable as error:
            raise Busy(
                f"run {row.run_id!r} cannot be recovered at the moment, and nothing of it is lost: {error}"
            ) from error
        except (JournalError, KeyError, TypeError, ValueError) as error:
            failure = f"the journal of run {row.run_id!r} cannot be read: {error}. Resume it from its last checkpoint."
            await self._catalog.runs.set_state(row.run_id, "lost", failure=failure)
            raise ServerFailure(failure) from error
        try:
            await self._usage.count_journal(facts, journal, contents)
            lost_operations = await self._losses.check(facts, journal, contents)
            history = await self._complete_history(facts, journal, contents)
        except BaseException:
            await journal.close()
            raise
        run = Run(
            facts,
            journal,
            history,
            contents.used_seq_ids,
            seals=contents.seals,
            progress=progress_of(contents.progress),
            recovery_reason=PARKED if row.state == "parked" else RESTARTED,
            used_at=self._monotonic(),
        )
        run.note_lost_operations(lost_operations)
        if row.state == "parked":
            await self._catalog.runs.set_state(row.run_id, "active")
        await self._runner.offer_results(run.owner, journal, contents)
        self._runs.add(run)
        self._runner.resubmit(run)
        return run

    async def _complete_history(self, facts: RunFacts, journal: RunJournal, contents: JournalContents) -> RunHistory:
        return await self._history.complete(
            facts.run_id, contents.measured, birth=facts.birth, next_sequence=journal.next_sequence
        )

    async def _read_history(self, run_id: str) -> None:
        """Complete the history of a run that is not woken: the server may have died before it wrote the last points."""
        async with self._runs.lock(run_id):
            if self._runs.get(run_id) is not None:
                return
            with suppress(JournalError, KeyError, TypeError, ValueError):
                journal, contents = await self._journals.read(run_id)
                await self._complete_history(RunFacts.from_json(contents.facts), journal, contents)

    @asynccontextmanager
    async def _room(self) -> AsyncIterator[None]:
        """Room for one more run, which is live at the end. Raises Busy."""
        self._arriving += 1
        try:
            await self._make_room()
            yield
        finally:
            self._arriving -= 1

    async def _make_room(self) -> None:
        """Park the least recently used run, if too many are live. Raises Busy if all are in use."""
        if len(self._runs) + self._arriving <= self._max_runs:
            return
        for run in sorted(self._runs, key=lambda run: run.used_at):
            if run.is_lost and run.lane.is_idle():  # its row says why
                self._runs.remove(run)
                await run.journal.close()
                return
            if run.lane.is_idle() and await self.park(run):
                return
        raise Busy(
            f"{len(self._runs)} runs are loaded, and no more may be: finish a session or unload a model, "
            "or start the server with a higher max_runs"
        )
