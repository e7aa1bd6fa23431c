"""Rebuild: writes the catalog rows of runs that only their journals know, because the catalog was lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from chockstone.catalog import Catalog, CatalogError, RowMissing, RunRow
from chockstone.engine.journal.journal import JournalError
from chockstone.engine.runs.commands import SnapshotWeights
from chockstone.engine.runs.journal_contents import JournalContents
from chockstone.engine.runs.run import LiveRuns, RunFacts
from chockstone.engine.runs.run_journal import RunJournals

log = logging.getLogger(__name__)


class CatalogRebuild:
    def __init__(self, catalog: Catalog, runs: LiveRuns, journals: RunJournals, *, now: Callable[[], datetime]) -> None:
        self._catalog = catalog
        self._runs = runs
        self._journals = journals
        self._now = now

    async def rebuild_all(self) -> None:
        """Of every journal whose run the catalog does not know."""
        if not self._journals.are_kept:
            return
        run_ids = set(await self._journals.list_runs())
        for state in ("active", "parked"):
            run_ids -= {row.run_id for row in await self._catalog.runs.list_in_state(state)}
        for run_id in sorted(run_ids):
            if self._runs.get(run_id) is None:
                async with self._runs.lock(run_id):
                    await self.find_row(run_id)

    async def find_row(self, run_id: str) -> RunRow | None:
        """The row of a run, rebuilt from its journal if need be. To be called with the run's lock held."""
        with suppress(RowMissing):
            return await self._catalog.runs.get(run_id)
        if self._journals.are_kept and await self._journals.exists(run_id):
            await self._rebuild(run_id)
            with suppress(RowMissing):
                return await self._catalog.runs.get(run_id)
        return None

    async def _rebuild(self, run_id: str) -> None:
        try:
            _, contents = await self._journals.read(run_id)
            facts = RunFacts.from_json(contents.facts)
            if facts.run_id != run_id or not contents.is_worth_recovering:
                return
            now = self._now()
            await self._catalog.sessions.rebuild(
                facts.session_id, owner=facts.owner, now=now, project_id=facts.project_id
            )
            await self._catalog.runs.rebuild(
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
            await self._rebuild_samplers(facts, contents)
            log.warning("run row rebuilt from its journal run=%s", run_id)
        except (JournalError, CatalogError, OSError, KeyError, TypeError, ValueError) as error:
            log.warning("run row not rebuilt run=%s error=%s", run_id, error)

    async def _rebuild_samplers(self, facts: RunFacts, contents: JournalContents) -> None:
        for operation in contents.operations:
            command, outcome = operation.command, operation.outcome
            if isinstance(command, SnapshotWeights) and outcome is not None and not outcome.is_failure:
                await self._catalog.samplers.create(
                    facts.session_id,
                    command.sampler_seq_id,
                    owner=facts.owner,
                    base_model=facts.base_model,
                    archive=outcome.facts["archive"],
                    now=self._now(),
                )
