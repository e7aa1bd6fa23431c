"""Run usage: reports the tokens that runs train to the usage, as passes end, and from the journals after a crash."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.engine.journal.journal import JournalError, JournalWriter
from chockstone.engine.journal.mark_file import MarkFile
from chockstone.engine.runs.journal_contents import JournalContents
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.run import LiveRuns, Run, RunFacts
from chockstone.engine.runs.run_journal import RunJournal, RunJournals
from chockstone.engine.storage.archive_names import run_of_stored
from chockstone.engine.usage import JournalPoint, TrainedTotal, UsageMeter

log = logging.getLogger(__name__)


class RunUsage:
    def __init__(
        self,
        meter: UsageMeter,
        runs: LiveRuns,
        journals: RunJournals,
        mark_file: Callable[[str], MarkFile],
        *,
        on_trained: Callable[[str, int], None] = lambda _owner, _tokens: None,
    ) -> None:
        """``on_trained`` is called with the owner of a run and the tokens that it has just trained."""
        self._meter = meter
        self._on_trained = on_trained
        self._runs = runs
        self._journals = journals
        self._mark_file = mark_file
        self.recovered = asyncio.Event()  # journals of earlier servers are counted, or cannot be read

    def note_settled(self, run: Run, operation: Operation, tokens: int) -> None:
        """The operation has ended; it trained this many tokens that were not counted before."""
        if tokens:
            self._on_trained(run.owner, tokens)
            self._report(run.facts, tokens, run.journal.trained if run.journal.is_kept else None)
        if run.journal.is_kept:
            self._meter.ended(run.run_id, run.facts.birth, through=operation.sequence)

    async def count_journal(self, facts: RunFacts, journal: RunJournal, contents: JournalContents) -> None:
        """Report what the journal of an earlier server holds and the catalog lacks. Raises CatalogError.

        To be called when the journal was opened, before anything is added.
        """
        position = await self._meter.position(facts.run_id, facts.birth)
        counted = 0
        if position is not None:
            counted = position.counted
            journal.adopt_trained(counted, through=position.through)
        for each in contents.trained:
            if each.tokens > counted:
                self._report(facts, each.tokens - counted, each)
                counted = each.tokens

    async def recover_all(self) -> None:
        """Count what runs that are not live have trained. Raises CatalogError."""
        if not self._journals.are_kept:
            return
        counted = await self._meter.sources()
        kept = await self._journals.list_runs()
        for run_id in sorted(counted.difference(kept)):  # the last server died when it had deleted the journal
            await self.forget(run_id)
        for run_id in kept:
            if self._runs.get(run_id) is None:
                async with self._runs.lock(run_id):
                    await self.recover(run_id)
        await self._meter.flush()

    async def recover(self, run_id: str) -> None:
        """Count what a run has trained if it is not live. To be called with its lock held. Raises CatalogError."""
        if not self._journals.are_kept or self._runs.get(run_id) is not None:
            return
        if not await self._journals.exists(run_id) or await self._is_counted(run_id):
            return
        try:
            journal, contents = await self._journals.read(run_id)
            facts = RunFacts.from_json(contents.facts)
        except (JournalError, KeyError, TypeError, ValueError) as error:
            log.warning("usage of a run not counted run=%s error=%s", run_id, error)
            return
        await self.count_journal(facts, journal, contents)
        unended = [each.sequence for each in contents.operations if each.outcome is None]
        through = min(unended) - 1 if unended else contents.newest_operation
        self._meter.ended(run_id, facts.birth, through=through)

    async def flush(self, run_id: str) -> None:
        """Write what the run has trained to the catalog. Raises CatalogError."""
        await self._meter.flush_journal(run_id)

    async def forget(self, run_id: str) -> None:
        """The journal is deleted. Raises CatalogError."""
        await self._meter.forget(run_id)

    async def _is_counted(self, run_id: str) -> bool:
        """Whether the catalog has counted all that was acknowledged, so that the journal need not be read."""
        try:
            mark = await asyncio.to_thread(self._mark_file(run_id).read)
        except OSError:
            return False
        position = None if mark is None else await self._meter.position(run_id, mark.birth)
        return mark is not None and position is not None and position.through >= mark.sequence

    def _report(self, facts: RunFacts, tokens: int, trained: TrainedTotal | None) -> None:
        point = None
        if trained is not None:
            point = JournalPoint(facts.run_id, facts.birth, trained.tokens, trained.through, trained.moment)
        self._meter.trained(
            facts.session_id, owner=facts.owner, base_model=facts.base_model, tokens=tokens, point=point
        )


@asynccontextmanager
async def counted_journal(catalog: Catalog, directory: Path, *, now: datetime) -> AsyncIterator[None]:
    """Inside, the journal of a run that has ended may be deleted: the catalog has counted it. For use without a server.

    Raises CatalogError.
    """
    run_id = run_of_stored(directory.name)
    if run_id is None:
        yield
        return
    meter, writer = UsageMeter(catalog, now=lambda: now), JournalWriter(synced=False)
    usage = RunUsage(meter, LiveRuns(), RunJournals(directory.parent, writer, _no_mark), _no_mark)
    try:
        await usage.recover(run_id)
        await usage.flush(run_id)
        yield
        await usage.forget(run_id)
    finally:
        await writer.close()


def _no_mark(run_id: str) -> MarkFile:
    return MarkFile(Path(os.devnull) / run_id)
