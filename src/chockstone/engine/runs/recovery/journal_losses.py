"""Journal marks and losses: how far each run's journal was acknowledged, and what to do if its end is lost.

Each run has a mark file, written before the client gets its answer, so it is exact. The catalog follows within a
second, and when a run is parked or the server stops. It may know more than a data directory that was restored from an
older copy.

A run whose journal lost acknowledged operations fails, unless the server runs with --on-journal-loss continue. Either
way a receipt says how many operations are missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CatalogError
from chockstone.catalog.tables.engine import JournalMarkRow
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.config import Busy, OnJournalLoss
from chockstone.engine.journal.mark_file import JournalMark, MarkFile
from chockstone.engine.runs.journal_contents import JournalContents
from chockstone.engine.runs.recovery.archives import RecoveryArchives
from chockstone.engine.runs.run import LiveRuns, Run, RunFacts, journal_head, progress_of
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.engine.storage.archive_names import run_of_stored, stored_session
from chockstone.wire.failures import ServerFailure

log = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 1.0
_SUFFIX: Final = ".mark"
_LOST_END: Final = "the journal lost its end"  # reason of receipts


@dataclass(frozen=True, slots=True)
class JournalLoss:
    """A journal ends before what was acknowledged."""

    mark: JournalMark
    last_sequence: int  # that the journal has
    operations: int  # how many acknowledged ones it lacks


class JournalMarks:
    def __init__(self, directory: Path, catalog: Catalog, runs: LiveRuns) -> None:
        self._directory = directory
        self._catalog = catalog
        self._runs = runs
        self._in_catalog: dict[str, JournalMark] = {}  # by run
        self._order = asyncio.Lock()  # of writing and removing rows

    def file_of(self, run_id: str) -> MarkFile:
        return MarkFile(self._directory / f"{stored_session(run_id)}{_SUFFIX}")

    async def forget(self, run_id: str) -> None:
        """Remove the marks of a run that is not live: it has ended, or continues from another mark."""
        await asyncio.to_thread(self.file_of(run_id).path.unlink, missing_ok=True)
        async with self._order:
            self._in_catalog.pop(run_id, None)
            await self._catalog.journal_marks.remove(run_id)

    def list_runs(self) -> list[str]:
        """The runs that have a mark file."""
        stored = (path.name.removesuffix(_SUFFIX) for path in self._directory.glob(f"*{_SUFFIX}"))
        return [run_id for each in stored if (run_id := run_of_stored(each)) is not None]

    async def keep(self) -> None:
        """Write marks to the catalog, for ever."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            await self.flush()

    async def flush(self, runs: Iterable[Run] | None = None) -> None:
        """Write the newest marks of these runs to the catalog; None: of all live runs."""
        async with self._order:
            await self._put(self._runs if runs is None else runs)

    async def _put(self, runs: Iterable[Run]) -> None:
        news: dict[str, JournalMark] = {}
        for run in runs:
            mark = run.journal.acknowledged
            if mark is not None and self._in_catalog.get(run.run_id) != mark:
                news[run.run_id] = mark
        if not news:
            return
        rows = {
            run_id: JournalMarkRow(run_id, mark.birth, mark.sequence, mark.operations) for run_id, mark in news.items()
        }
        try:
            await self._catalog.journal_marks.put_many(rows)
        except CatalogError as error:  # retried with the next ones; the files are exact
            log.warning("journal marks not written to the catalog runs=%d error=%s", len(rows), error)
        else:
            self._in_catalog |= news

    async def newest(self, run_id: str, birth: str) -> JournalMark | None:
        """The later one of file and catalog; None: neither has a mark of this run. Raises CatalogError."""
        found: list[JournalMark] = []
        file = self.file_of(run_id)
        try:
            in_file = await asyncio.to_thread(file.read)
        except OSError as error:
            log.warning("journal mark not read file=%s error=%s", file.path, error)
            in_file = None
        if in_file is not None:
            found.append(in_file)
        if (row := await self._catalog.journal_marks.get(run_id)) is not None:
            found.append(JournalMark(row.birth, row.sequence, row.operations))
        return max((mark for mark in found if mark.birth == birth), key=lambda mark: mark.sequence, default=None)


class JournalLosses:
    def __init__(
        self,
        catalog: Catalog,
        marks: JournalMarks,
        archives: RecoveryArchives,
        *,
        on_loss: OnJournalLoss,
        now: Callable[[], datetime],
    ) -> None:
        self._catalog = catalog
        self._marks = marks
        self._archives = archives
        self._on_loss = on_loss
        self._now = now

    async def check(self, facts: RunFacts, journal: RunJournal, contents: JournalContents) -> int:
        """How many acknowledged operations the journal lacks, if the run is to continue without them; usually 0.

        To be called when the journal was opened, before anything is added. Raises ServerFailure, with the run marked
        as lost and the journal unchanged, if the run must not continue; Busy if the store cannot be read.
        """
        run_id = facts.run_id
        loss = await self._find(facts, journal)
        if loss is None:
            return 0
        log.error(
            "journal lost its end run=%s last_record=%d acknowledged=%d operations_lost=%d",
            *(run_id, loss.last_sequence, loss.mark.sequence, loss.operations),
        )
        if self._on_loss == "fail":
            failure = await self._explain(run_id, loss)
            await self._add_receipt(facts, loss, "the run was not recovered")
            await self._catalog.runs.set_state(run_id, "lost", failure=failure)
            raise ServerFailure(failure)
        archived = await self._archived(run_id)
        journal.continue_after(loss.mark, archived=archived)
        # Without a new segment the next server would find the same loss in a run that wrote nothing since.
        journal.rotate(journal_head(facts, contents.used_seq_ids, contents.seals, progress_of(contents.progress)))
        covered = f"; recovery archive {archived} holds those up to it" if archived > loss.last_sequence else ""
        await self._add_receipt(facts, loss, f"the run continues without them, by --on-journal-loss continue{covered}")
        await self._marks.forget(run_id)
        return loss.operations

    async def was_found_in(self, run_id: str) -> bool:
        """Whether the run is lost because its journal lost its end."""
        receipts = await self._catalog.recoveries.list(run_id, limit=1)
        return bool(receipts) and receipts[0].reason == _LOST_END and bool(receipts[0].lost)

    async def may_continue(self, facts: RunFacts, journal: RunJournal) -> bool:
        """Whether a run that is lost because of this may continue now."""
        return self._on_loss == "continue" or await self._find(facts, journal) is None

    async def _find(self, facts: RunFacts, journal: RunJournal) -> JournalLoss | None:
        mark = await self._marks.newest(facts.run_id, facts.birth)
        if mark is None:  # earlier versions wrote none; but the names of recovery archives have sequences, too
            mark = JournalMark(facts.birth, await self._archived(facts.run_id), 0)
        if mark.sequence < journal.next_sequence:
            return None
        missing = max(1, mark.operations - journal.acknowledged_operations)
        return JournalLoss(mark, journal.next_sequence - 1, missing)

    async def _archived(self, run_id: str) -> int:
        try:
            return max((each.through for each in await self._archives.candidates(run_id)), default=0)
        except StoreError as error:
            raise Busy(f"run {run_id!r} cannot be recovered at the moment: {error}") from error

    async def _explain(self, run_id: str, loss: JournalLoss) -> str:
        latest = await self._catalog.checkpoints.latest(run_id, "weights", now=self._now())
        resume = (
            "It has no checkpoint to resume from."
            if latest is None
            else f"Resume from {latest.path!r} with create_training_client_from_state_with_optimizer."
        )
        return (
            f"the journal of run {run_id!r} lost its end: {_count(loss.operations)} that the server had acknowledged "
            f"{'is' if loss.operations == 1 else 'are'} missing, so the run is not recovered. {resume} "
            "The operator can put the journal back and start the "
            "server again, or start it with --on-journal-loss continue to continue without them."
        )

    async def _add_receipt(self, facts: RunFacts, loss: JournalLoss, what_then: str) -> None:
        note = (
            f"the journal ends at record {loss.last_sequence}, and record {loss.mark.sequence} was acknowledged: "
            f"{_count(loss.operations)} lost; {what_then}"
        )
        await self._catalog.recoveries.add(
            run_id=facts.run_id, owner=facts.owner, at=self._now(), reason=_LOST_END, notes=[note], lost=loss.operations
        )


def _count(operations: int) -> str:
    return "1 operation" if operations == 1 else f"{operations} operations"
