"""Journal losses: what happens to a run whose journal lost operations that were acknowledged.

The run fails, unless the server was told to continue. Either way a receipt says how many operations are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from chockstone.catalog import Catalog
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.config import Busy, OnJournalLoss
from chockstone.engine.journal.mark_file import JournalMark
from chockstone.engine.runs.journal_marks import JournalLoss, JournalMarks
from chockstone.engine.runs.recovery_archives import RecoveryArchives
from chockstone.engine.runs.run import Run, RunFacts
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.wire.failures import ServerFailure

log = logging.getLogger(__name__)
REASON: Final = "the journal lost its end"  # in receipts


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

    async def check(self, live: Run) -> int:
        """How many acknowledged operations the journal lacks, if the run is to go on without them: 0 as a rule.

        To be called when the journal was opened, before anything is added. Raises ServerFailure, with the run marked
        as lost and the journal as it was, where it must not go on; Busy when the store cannot be asked.
        """
        facts, journal, run_id = live.facts, live.journal, live.run_id
        loss = await self._find(facts, journal)
        if loss is None:
            return 0
        log.error(
            "journal lost its end run=%s last_record=%d acknowledged=%d operations_lost=%d",
            *(run_id, loss.last_sequence, loss.mark.sequence, loss.operations),
        )
        if self._on_loss == "fail":
            failure = await self._explain(run_id, loss)
            await self._write_down(facts, loss, "the run was not recovered")
            await self._catalog.runs.set_state(run_id, "lost", failure=failure)
            raise ServerFailure(failure)
        archived = await self._archived(run_id)
        journal.go_on_after(loss.mark, archived=archived)
        journal.rotate(live.head())  # or the next server finds the same loss in a run that wrote nothing since
        covered = f"; recovery archive {archived} holds those up to it" if archived > loss.last_sequence else ""
        await self._write_down(facts, loss, f"the run goes on without them, by --on-journal-loss continue{covered}")
        await self._marks.forget(run_id)
        return loss.operations

    async def is_over(self, facts: RunFacts, journal: RunJournal) -> bool:
        """Of a run that failed for this: whether it may go on now."""
        return self._on_loss == "continue" or await self._find(facts, journal) is None

    async def _find(self, facts: RunFacts, journal: RunJournal) -> JournalLoss | None:
        mark = await self._marks.newest(facts.run_id, facts.birth)
        if mark is None:  # a journal of before has none; but the names of recovery archives have numbers, too
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
            "server again, or start it with --on-journal-loss continue to go on without them."
        )

    async def _write_down(self, facts: RunFacts, loss: JournalLoss, what_then: str) -> None:
        note = (
            f"the journal ends at record {loss.last_sequence}, and record {loss.mark.sequence} was acknowledged: "
            f"{_count(loss.operations)} lost; {what_then}"
        )
        await self._catalog.recoveries.add(
            run_id=facts.run_id, owner=facts.owner, at=self._now(), reason=REASON, notes=[note], lost=loss.operations
        )


def _count(operations: int) -> str:
    return "1 operation" if operations == 1 else f"{operations} operations"
