"""Leftover files: journals and recovery archives of runs that have ended.

A run needs them until it is unloaded or its session is finished. A run that has a journal but no row is not over: the
catalog may be lost, and the next server rebuilds the row from the journal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.engine.journal.format import JournalDamaged
from chockstone.engine.journal.scan import scan_all
from chockstone.engine.storage.archive_names import recovered_run, run_of_stored


@dataclass(frozen=True, slots=True)
class LeftoverFiles:
    archives: tuple[str, ...]
    journals: tuple[Path, ...]
    living: tuple[Path, ...]  # journals of runs that have not ended

    @property
    def living_sessions(self) -> frozenset[str]:
        """The sessions of such runs, as spelled in archive names."""
        return frozenset(journal.name.rpartition(".train.")[0] for journal in self.living)


async def find_leftover_files(catalog: Catalog, archives: Iterable[str], journals: Iterable[Path]) -> LeftoverFiles:
    """The leftovers among these. List archives and journals before the call, so that the catalog knows their runs."""
    by_archive = {archive: run for archive in archives if (run := recovered_run(archive)) is not None}
    by_name = {journal.name: journal for journal in journals}
    ids = {stored: run_of_stored(stored) for stored in {*by_archive.values(), *by_name}}
    over = await catalog.runs.are_over(sorted(run_id for run_id in ids.values() if run_id is not None))

    def is_over(stored: str) -> bool:
        is_unknown_without_journal = stored not in by_name
        return over.get(ids[stored] or "", is_unknown_without_journal)

    return LeftoverFiles(
        archives=tuple(archive for archive, stored in by_archive.items() if is_over(stored)),
        journals=tuple(journal for stored, journal in by_name.items() if is_over(stored)),
        living=tuple(journal for stored, journal in by_name.items() if not is_over(stored)),
    )


def list_journals(directory: Path) -> list[Path]:
    """The journal directories, one for each run."""
    try:
        with os.scandir(directory) as found:
            return sorted(directory / each.name for each in found if each.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def archives_to_replay(journals: Iterable[Path]) -> set[str]:
    """Checkpoints that a recovery of these runs would load again. Raises JournalError, OSError."""
    records = [record for journal in journals for scan in scan_all(journal) for record in scan.records]
    for record in records:
        if not record.head:
            raise JournalDamaged(f"record {record.sequence} cannot be read: {record.damage}")
    facts = (record.head.get("facts") or {} for record in records)
    return {each["archive"] for each in facts if "archive" in each}


def journal_bytes(journal: Path) -> int:
    """Total size of its files, as far as they exist at this moment."""
    total = 0
    for each in journal.glob("*"):
        try:
            total += each.stat().st_size
        except FileNotFoundError:
            continue
    return total
