"""Journal marks: how far the journal of each run was acknowledged, in a file for each run and in the catalog.

The files are exact: each is written before a client is told. The catalog follows within a second, and when a run
is parked or the server stops: it knows more than a data directory that was restored from an older copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CatalogError
from chockstone.catalog.tables.journal_marks import JournalMarkRow
from chockstone.engine.journal.mark_file import JournalMark, MarkFile
from chockstone.engine.runs.live_runs import LiveRuns
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_names import run_of_stored, stored_session

log = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 1.0
_SUFFIX: Final = ".mark"


@dataclass(frozen=True, slots=True)
class JournalLoss:
    """A journal ends before what was acknowledged."""

    mark: JournalMark
    last_sequence: int  # that the journal has
    operations: int  # acknowledged ones that it lacks


class JournalMarks:
    def __init__(self, directory: Path, catalog: Catalog, runs: LiveRuns) -> None:
        self._directory = directory
        self._catalog = catalog
        self._runs = runs
        self._written: dict[str, JournalMark] = {}  # what the catalog has, by run
        self._order = asyncio.Lock()  # rows are written or removed, one after the other

    def file_of(self, run_id: str) -> MarkFile:
        return MarkFile(self._directory / f"{stored_session(run_id)}{_SUFFIX}")

    async def forget(self, run_id: str) -> None:
        """The run is over, or goes on from another mark; it is not at hand any more, or not yet."""
        await asyncio.to_thread(self.file_of(run_id).path.unlink, missing_ok=True)
        async with self._order:
            self._written.pop(run_id, None)
            await self._catalog.journal_marks.remove(run_id)

    def list_runs(self) -> list[str]:
        """Those with a mark file."""
        stored = (path.name.removesuffix(_SUFFIX) for path in self._directory.glob(f"*{_SUFFIX}"))
        return [run_id for each in stored if (run_id := run_of_stored(each)) is not None]

    async def keep(self) -> None:
        """Have the catalog follow, for ever."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            await self.flush()

    async def flush(self, runs: Iterable[Run] | None = None) -> None:
        """Tell the catalog what it does not know yet; of all runs at hand, or of these."""
        async with self._order:
            await self._put(self._runs if runs is None else runs)

    async def _put(self, runs: Iterable[Run]) -> None:
        news: dict[str, JournalMark] = {}
        for live in runs:
            mark = live.journal.acknowledged
            if mark is not None and self._written.get(live.run_id) != mark:
                news[live.run_id] = mark
        if not news:
            return
        rows = {
            run_id: JournalMarkRow(run_id, mark.birth, mark.sequence, mark.operations) for run_id, mark in news.items()
        }
        try:
            await self._catalog.journal_marks.put_many(rows)
        except CatalogError as error:  # the next time may go better; the files are exact
            log.warning("marks of journals not in the catalog yet runs=%d error=%s", len(rows), error)
        else:
            self._written |= news

    async def newest(self, run_id: str, birth: str) -> JournalMark | None:
        """The later one of file and catalog; None: neither has one of this run. Raises CatalogError."""
        found: list[JournalMark] = []
        file = self.file_of(run_id)
        try:
            in_file = await asyncio.to_thread(file.read)
        except OSError as error:
            log.warning("mark of a journal not read file=%s error=%s", file.path, error)
            in_file = None
        if in_file is not None:
            found.append(in_file)
        if (row := await self._catalog.journal_marks.get(run_id)) is not None:
            found.append(JournalMark(row.birth, row.sequence, row.operations))
        return max((mark for mark in found if mark.birth == birth), key=lambda mark: mark.sequence, default=None)
