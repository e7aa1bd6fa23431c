"""Repairs: fix findings without losing anything that a client was promised.

The caller must hold the data directory's lock. Each repair is one step and may be repeated: after a crash between two
repairs, the next examination finds the rest.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CheckpointRow, CheckpointRowExists, TrashRow, UnstorableColumnValue, Use
from chockstone.checkpoints import Archive, Store
from chockstone.checkpoints.errors import CheckpointMissing, StoreError
from chockstone.engine.doctor.examination import is_unmounted, read_in_full
from chockstone.engine.doctor.findings import Finding, FindingKind
from chockstone.engine.doctor.row_rebuild import adopt
from chockstone.engine.runs.recovery.run_usage import counted_journal
from chockstone.engine.storage.leftover_files import list_journals
from chockstone.engine.usage import UsageMeter

_DOCTOR: Final = "chockstone doctor"  # who did it, in the audit log
_LOSSES: Final = (FindingKind.MISSING, FindingKind.EMPTY_TRASH)  # what a disk that is not mounted looks like


@dataclass(frozen=True, slots=True)
class AllowedRepairs:
    """Which findings a doctor may repair. Rows for archives that have none may always be made."""

    may_repair: bool = True
    may_create: bool = False  # a catalog, where there is none
    trash_seconds: float = 0.0  # how long what a save replaced can be restored, as the server has it
    remove_damaged: bool = False
    remove_orphans: bool = False

    def includes(self, kind: FindingKind) -> bool:
        if kind is FindingKind.ORPHAN:
            return True
        if not self.may_repair or kind is FindingKind.UNREADABLE:
            return False
        if kind is FindingKind.KNOWN_DAMAGED:
            return self.remove_damaged
        if kind in (FindingKind.RIVAL, FindingKind.STRAY):
            return self.remove_orphans
        return True


@dataclass(frozen=True, slots=True)
class Repair:
    finding: Finding
    done: str  # what was done, in words
    freed_bytes: int = 0
    failure: str = ""  # why it was not


class Repairs:
    def __init__(
        self, catalog: Catalog, store: Store, allowed: AllowedRepairs, *, now: datetime, journals: Path | None = None
    ) -> None:
        self._catalog = catalog
        self._journals = journals
        self._store = store
        self._allowed = allowed
        self._now = now
        self._by_kind = {
            FindingKind.STUCK: self._end_save,
            FindingKind.MISSING: self._remove_row,
            FindingKind.DAMAGED: self._mark_damaged,
            FindingKind.SWAPPED: self._mark_damaged,
            FindingKind.KNOWN_DAMAGED: self._remove_damaged,
            FindingKind.HEALED: self._mark_ready,
            FindingKind.MISSIZED: self._correct_size,
            FindingKind.OVERDUE: self._purge,
            FindingKind.EMPTY_TRASH: self._purge,
            FindingKind.ORPHAN: self._adopt,
            FindingKind.RIVAL: self._delete_archive,
            FindingKind.STRAY: self._delete_archive,
            FindingKind.EPHEMERAL: self._delete_archive,
            FindingKind.RECOVERY: self._delete_archive,
            FindingKind.JOURNAL: self._remove_journal,
            FindingKind.PARTIAL: self._sweep,
            FindingKind.EMPTY_DIRECTORY: self._remove_directory,
        }

    async def carry_out(self, findings: Iterable[Finding]) -> list[Repair]:
        """Repair what may be repaired, in the order given. One that fails stops no other."""
        is_unsafe = await asyncio.to_thread(is_unmounted, self._store)
        repairs = []
        for finding in findings:
            if not self._allowed.includes(finding.kind):
                continue
            if is_unsafe and finding.kind in _LOSSES:
                why = f"{self._store.url} is empty: is its disk mounted? Nothing is given up for good like that"
                repairs.append(Repair(finding, "", failure=why))
                continue
            try:
                repairs.append(await self._by_kind[finding.kind](finding))
            except (StoreError, CheckpointRowExists, UnstorableColumnValue, OSError) as error:
                repairs.append(Repair(finding, "", failure=str(error)))
        return repairs

    async def _end_save(self, finding: Finding) -> Repair:
        """Publish it if it is whole, as the server was about to do; else give it up."""
        save = _row(finding)
        fault = await asyncio.to_thread(read_in_full, self._store, save.archive)
        if isinstance(fault, StoreError) and not isinstance(fault, CheckpointMissing):
            raise fault  # its content is unknown
        if fault is None:
            size_bytes, seal = await asyncio.to_thread(self._size_and_seal, save.archive)
            with suppress(CheckpointRowExists):  # the name was taken meanwhile: the archive is one without a row
                purge_at = self._now + timedelta(seconds=self._allowed.trash_seconds)
                committed = await self._catalog.checkpoint_saves.commit(
                    save, size_bytes=size_bytes, seal=seal, now=self._now, purge_at=purge_at, use=self._use(save)
                )
                if committed.replaced is not None and purge_at <= self._now:
                    await self._purge_trash(committed.replaced)
                await self._record("checkpoint_saved", save)
                return Repair(finding, "published: its archive is whole")
        await self._catalog.checkpoint_saves.fail(save)
        await asyncio.to_thread(self._store.sweep)
        return Repair(finding, "given up")

    def _use(self, save: CheckpointRow) -> Use:
        meter = UsageMeter(self._catalog, now=lambda: self._now)
        return meter.saved(save.run_id.partition(":")[0], owner=save.owner, base_model=save.base_model)

    def _size_and_seal(self, archive: str) -> tuple[int, str]:
        with Archive(self._store.open(archive)) as opened:
            return opened.size, opened.seal

    async def _remove_row(self, finding: Finding) -> Repair:
        row = _row(finding)
        await self._discard(row, "its archive is not in the store")
        return Repair(finding, "removed from the catalog")

    async def _mark_damaged(self, finding: Finding) -> Repair:
        row = _row(finding)
        await self._catalog.checkpoints.mark_damaged(row.save_id, finding.detail)
        if self._allowed.remove_damaged:
            return await self._remove_damaged(finding)
        return Repair(finding, "marked as damaged")

    async def _remove_damaged(self, finding: Finding) -> Repair:
        freed_bytes = await self._discard(_row(finding), f"damaged: {finding.detail}")
        return Repair(finding, "removed, row and bytes", freed_bytes)

    async def _mark_ready(self, finding: Finding) -> Repair:
        await self._catalog.checkpoints.mark_ready(_row(finding).save_id)
        return Repair(finding, "marked as ready")

    async def _correct_size(self, finding: Finding) -> Repair:
        await self._catalog.checkpoints.set_size(_row(finding).save_id, finding.size_bytes)
        return Repair(finding, "corrected")

    async def _purge(self, finding: Finding) -> Repair:
        assert finding.trash is not None, finding
        freed_bytes = await self._purge_trash(finding.trash)
        return Repair(finding, "purged", freed_bytes)

    async def _adopt(self, finding: Finding) -> Repair:
        assert finding.description is not None, finding
        journals = [] if self._journals is None else await asyncio.to_thread(list_journals, self._journals)
        row = await adopt(self._catalog, finding.description, now=self._now, journals=journals)
        await self._record("checkpoint_adopted", row)
        return Repair(finding, f"listed as {row.path} of {row.owner}")

    async def _delete_archive(self, finding: Finding) -> Repair:
        is_deleted = await asyncio.to_thread(self._store.delete, finding.subject)
        return Repair(finding, "deleted", finding.size_bytes if is_deleted else 0)

    async def _remove_journal(self, finding: Finding) -> Repair:
        journal = Path(finding.subject)
        async with counted_journal(self._catalog, journal, now=self._now):
            await asyncio.to_thread(shutil.rmtree, journal)
        return Repair(finding, "deleted", finding.size_bytes)

    async def _sweep(self, finding: Finding) -> Repair:
        await asyncio.to_thread(self._store.sweep)
        return Repair(finding, "deleted", finding.size_bytes)

    async def _remove_directory(self, finding: Finding) -> Repair:
        with suppress(OSError):  # something is in it by now
            os.rmdir(Path(finding.subject))
        return Repair(finding, "removed")

    async def _discard(self, row: CheckpointRow, reason: str) -> int:
        """Row first, then bytes; the bytes freed."""
        freed_bytes = 0
        for trash in await self._catalog.checkpoints.discard([row], reason=reason, now=self._now, purge_at=self._now):
            await self._record("checkpoint_removed", row, reason=reason)
            freed_bytes += await self._purge_trash(trash)
        return freed_bytes

    async def _purge_trash(self, trash: TrashRow) -> int:
        """The bytes freed. What a sampler of a living session uses stays until that ends."""
        if await self._catalog.samplers.in_use([trash.archive]):
            return 0
        await self._catalog.trash.claim([trash.trash_id])
        is_deleted = await asyncio.to_thread(self._store.delete, trash.archive)
        await self._catalog.trash.forget(trash.trash_id)
        return trash.size_bytes if is_deleted else 0

    async def _record(self, event: str, row: CheckpointRow, **details: str) -> None:
        await self._catalog.audit.record(
            event,
            owner=row.owner,
            run_id=row.run_id,
            path=row.path,
            details={"by": _DOCTOR, **details},
            now=self._now,
        )


def _row(finding: Finding) -> CheckpointRow:
    assert finding.checkpoint is not None, finding
    return finding.checkpoint
