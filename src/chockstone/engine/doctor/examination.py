"""The doctor: compares what the store holds with what the catalog says, and changes nothing.

Every archive's head is read; with ``is_full`` every byte of what the catalog lists is, too. A
checkpoint that is marked damaged is always read in full: only that can show it is good again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog, CheckpointRow, TrashRow
from chockstone.checkpoints import Archive, Store, StoredCheckpoint, list_checkpoints, verify_archive
from chockstone.checkpoints.errors import (
    DamagedArchive,
    ForeignArchive,
    SealMismatch,
    StoreError,
    UnsupportedArchive,
)
from chockstone.checkpoints.stores.file_store import PARTIAL, FileStore
from chockstone.engine.doctor.findings import Examination, Finding, FindingKind
from chockstone.engine.doctor.row_rebuild import Description, Undescribed, describe, newest
from chockstone.engine.journal.format import JournalError
from chockstone.engine.storage.archive_names import ephemeral_session, recovered_run, stored_session
from chockstone.engine.storage.leftover_files import (
    LeftoverFiles,
    archives_to_replay,
    find_leftover_files,
    journal_bytes,
    list_journals,
)
from chockstone.wire.paths import TinkerPath

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
_ASKED_AT_ONCE: Final = 500
_ALL: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Papers:
    """What the catalog says."""

    pending: tuple[CheckpointRow, ...]
    published: tuple[CheckpointRow, ...]
    trash: tuple[TrashRow, ...]
    living_sessions: frozenset[str]  # as the store spells them

    @property
    def archives(self) -> set[str]:
        rows = (*self.pending, *self.published)
        return {row.archive for row in rows} | {each.archive for each in self.trash}


@dataclass(slots=True)
class _Reading:
    """Archives read in full, and what came of it."""

    store: Store
    progress: Progress
    good: set[int] = field(default_factory=set)

    def fault(self, row: CheckpointRow) -> Finding | None:
        """What is wrong with the archive of a row, or None."""
        damage = read_in_full(self.store, row.archive, seal=row.seal, label=row.path, progress=self.progress)
        if damage is None:
            self.good.add(row.save_id)
            return None
        if isinstance(damage, StoreError):
            return _of_row(FindingKind.UNREADABLE, row, str(damage))
        return _of_row(FindingKind.KNOWN_DAMAGED if row.state == "damaged" else FindingKind.DAMAGED, row, str(damage))


async def examine(
    catalog: Catalog,
    store: Store,
    *,
    now: datetime,
    journals: Path | None = None,
    is_served: bool = False,
    is_full: bool = False,
    progress: Progress = lambda _label, _size: nullcontext(lambda _: None),
) -> Examination:
    """Look at everything, ``journals`` being where those of runs are.

    With ``is_served`` unfinished saves and runs that have just ended are a server's work, and no finding.

    Raises StoreError and CatalogError: half an examination must not look like a whole one.
    """
    papers = await _papers(catalog)
    archives = {found.name: found for found in await asyncio.to_thread(list_checkpoints, store)}
    found_journals = [] if journals is None else await asyncio.to_thread(list_journals, journals)
    reading = _Reading(store, progress)
    findings = [] if is_served else [_stuck(row, archives) for row in papers.pending]
    for row in papers.published:
        found = archives.get(row.archive)
        findings += await asyncio.to_thread(_look_at_row, row, found, reading, is_full=is_full)
    leftovers = await find_leftover_files(catalog, archives, found_journals)
    findings += await _look_at_trash(catalog, papers, archives, leftovers, now)
    findings += await _look_at_orphans(catalog, papers, archives, papers.living_sessions | leftovers.living_sessions)
    if not is_served:  # a server deletes them when no client can ask for the last results
        findings += await asyncio.to_thread(_look_at_leftovers, leftovers, archives)
    findings += await asyncio.to_thread(_look_at_litter, store)
    order = list(FindingKind)
    return Examination(
        findings=tuple(sorted(findings, key=lambda finding: order.index(finding.kind))),
        checkpoints=len(papers.published),
        archives=len(archives),
        size_bytes=sum(found.size for found in archives.values()),
        saves_under_way=len(papers.pending) if is_served else 0,
        trash=len(papers.trash),
        verified=frozenset(reading.good),
        unsealed=_unsealed(papers.published, archives, findings),
    )


def _unsealed(
    rows: Iterable[CheckpointRow], archives: dict[str, StoredCheckpoint], findings: Iterable[Finding]
) -> dict[int, str]:
    """The seals of archives whose rows have none, being of an earlier version; of those with nothing wrong."""
    at_fault = {each.checkpoint.save_id for each in findings if each.checkpoint is not None}
    found = ((row, archives.get(row.archive)) for row in rows if row.seal is None and row.save_id not in at_fault)
    return {row.save_id: archive.seal for row, archive in found if archive is not None and archive.seal is not None}


def lasting(first: Examination, second: Examination) -> Examination:
    """What of a first look a second one still shows: a server at work is between two steps somewhere."""
    seen_again = {finding.key for finding in second.findings}
    kept = (each for each in first.findings if not each.kind.may_be_momentary or each.key in seen_again)
    return replace(first, findings=tuple(kept))


def read_in_full(
    store: Store,
    archive: str,
    *,
    seal: str | None = None,
    label: str = "",
    progress: Progress = lambda _label, _size: nullcontext(lambda _: None),
) -> Exception | None:
    """Check every digest. What is wrong: a StoreError where the bytes could not be had, or the archive's fault."""
    try:
        with Archive(store.open(archive), seal=seal) as opened, progress(label or archive, opened.size) as on_bytes:
            verify_archive(opened, on_bytes=on_bytes)
    except (StoreError, DamagedArchive, ForeignArchive, UnsupportedArchive) as error:
        return error
    return None


def is_unmounted(store: Store) -> bool:
    """Whether the store is as empty as the mount point of a disk that is not mounted, or an unused prefix."""
    if not isinstance(store, FileStore):
        return next(store.entries(), None) is None
    try:
        with os.scandir(store.root) as items:
            return next(items, None) is None
    except FileNotFoundError:
        return True


async def _papers(catalog: Catalog) -> _Papers:
    rows = [row async for row in catalog.checkpoints.iterate()]
    return _Papers(
        pending=tuple(row for row in rows if row.state == "pending"),
        published=tuple(row for row in rows if row.state != "pending"),
        trash=tuple(await catalog.trash.list(limit=_ALL)),
        living_sessions=frozenset(
            stored_session(session.session_id) for session in await catalog.sessions.list_unfinished()
        ),
    )


def _of_row(kind: FindingKind, row: CheckpointRow, detail: str = "", *, size_bytes: int | None = None) -> Finding:
    size = row.size_bytes if size_bytes is None else size_bytes
    return Finding(kind, row.path, size, detail, checkpoint=row)


def _stuck(row: CheckpointRow, archives: dict[str, StoredCheckpoint]) -> Finding:
    found = archives.get(row.archive)
    if found is None:
        return _of_row(FindingKind.STUCK, row, "its archive was never finished", size_bytes=0)
    return _of_row(FindingKind.STUCK, row, found.damage or "its archive is in the store", size_bytes=found.size)


def _look_at_row(
    row: CheckpointRow, found: StoredCheckpoint | None, reading: _Reading, *, is_full: bool
) -> list[Finding]:
    if found is None:
        return [_of_row(FindingKind.MISSING, row, f"there is no archive {row.archive!r}")]
    if found.damage is not None and not found.is_newer:
        kind = FindingKind.KNOWN_DAMAGED if row.state == "damaged" else FindingKind.DAMAGED
        return [_of_row(kind, row, found.damage, size_bytes=found.size)]
    if row.seal is not None and found.seal is not None and found.seal != row.seal:
        kind = FindingKind.KNOWN_DAMAGED if row.state == "damaged" else FindingKind.SWAPPED
        detail = str(SealMismatch(expected=row.seal, found=found.seal))
        return [_of_row(kind, row, detail, size_bytes=found.size)]
    findings = []
    if row.size_bytes != found.size:
        detail = f"the catalog says {row.size_bytes} bytes, and the archive has {found.size}"
        findings.append(_of_row(FindingKind.MISSIZED, row, detail, size_bytes=found.size))
    if found.is_newer or not (is_full or row.state == "damaged"):
        return findings
    if (fault := reading.fault(row)) is not None:
        return [fault]
    if row.state == "damaged":
        findings.append(_of_row(FindingKind.HEALED, row, f"it was marked: {row.damage}"))
    return findings


async def _look_at_trash(
    catalog: Catalog, papers: _Papers, archives: dict[str, StoredCheckpoint], leftovers: LeftoverFiles, now: datetime
) -> list[Finding]:
    in_use = await _in_use(catalog, (each.archive for each in papers.trash))
    due = {each.archive for each in papers.trash if each.purge_at <= now}
    if due:
        in_use |= await asyncio.to_thread(_to_replay, leftovers, due)
    findings = []
    for each in papers.trash:
        if each.archive not in archives:
            findings.append(
                Finding(FindingKind.EMPTY_TRASH, each.path, detail=f"{each.reason}, its bytes gone", trash=each)
            )
        elif each.archive in due - in_use:
            detail = f"{each.reason}, to be gone by {each.purge_at:%Y-%m-%d %H:%M} UTC"
            findings.append(Finding(FindingKind.OVERDUE, each.path, each.size_bytes, detail, trash=each))
    return findings


async def _look_at_orphans(
    catalog: Catalog, papers: _Papers, archives: dict[str, StoredCheckpoint], living_sessions: frozenset[str]
) -> list[Finding]:
    strangers = sorted(name for name in set(archives) - papers.archives if recovered_run(name) is None)
    in_use = await _in_use(catalog, strangers)
    findings: list[Finding] = []
    described: list[Description] = []
    for name in strangers:
        found = archives[name]
        if (session := ephemeral_session(name)) is not None:
            if session not in living_sessions:
                findings.append(Finding(FindingKind.EPHEMERAL, name, found.size, "its session is over"))
        elif name not in in_use:
            try:
                described.append(describe(found))
            except Undescribed as why:
                findings.append(Finding(FindingKind.STRAY, name, found.size, str(why)))
    # A row without bytes keeps no name: it is removed first.
    rows = (*papers.pending, *(row for row in papers.published if row.archive in archives))
    taken = {TinkerPath(row.run_id, row.kind, row.name): row.archive for row in rows}  # type: ignore[arg-type]  # a kind is its word
    heirs = newest(described)
    for each in sorted(described, key=lambda each: each.order):
        kind, detail = FindingKind.ORPHAN, f"{each.path}{f' ({each.doubt})' if each.doubt else ''}"
        if (holder := taken.get(each.path) or heirs[each.path].archive) != each.archive:
            kind, detail = FindingKind.RIVAL, f"{each.path} is {holder!r}"
        findings.append(Finding(kind, each.archive, each.size_bytes, detail, description=each))
    return findings


def _to_replay(leftovers: LeftoverFiles, due: set[str]) -> set[str]:
    """Checkpoints that runs need to recover; a run whose journal cannot be read may need every checkpoint."""
    try:
        return archives_to_replay(leftovers.living)
    except (JournalError, OSError):
        return due


def _look_at_leftovers(leftovers: LeftoverFiles, archives: dict[str, StoredCheckpoint]) -> list[Finding]:
    return [
        *(Finding(FindingKind.RECOVERY, name, archives[name].size, "its run is over") for name in leftovers.archives),
        *(
            Finding(FindingKind.JOURNAL, str(each), journal_bytes(each), "its run is over")
            for each in leftovers.journals
        ),
    ]


async def _in_use(catalog: Catalog, archives: Iterable[str]) -> set[str]:
    names = list(archives)
    used: set[str] = set()
    for start in range(0, len(names), _ASKED_AT_ONCE):
        used |= await catalog.samplers.in_use(names[start : start + _ASKED_AT_ONCE])
    return used


def _look_at_litter(store: Store) -> Sequence[Finding]:
    partials = store.sweep(dry_run=True)
    findings = [
        Finding(FindingKind.PARTIAL, each.place, each.size, f"{timedelta(seconds=int(each.age_seconds))} old")
        for each in partials
    ]
    if isinstance(store, FileStore):
        findings += [Finding(FindingKind.EMPTY_DIRECTORY, str(each)) for each in _empty_directories(store.root)]
    return findings


def _empty_directories(root: Path) -> list[Path]:
    """Those that hold nothing but such, deepest first, as they can be removed."""
    empty: list[Path] = []
    for place, directories, files in os.walk(root, topdown=False):
        path = Path(place)
        inside = {path / name for name in directories}
        if path not in (root, root / PARTIAL) and not files and inside <= set(empty):
            empty.append(path)
    return empty
