"""Shared bytes: copies are names of the same file, so what they take and what their removal frees is not a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chockstone.catalog import TrashRow
from chockstone.catalog.tables.checkpoint_rows import CheckpointHolding, Usage
from chockstone.checkpoints.stores.store import StoreEntry


@dataclass(frozen=True, slots=True)
class Parcel:
    """Trash that shares its bytes: they are free when all of it is purged."""

    rows: tuple[TrashRow, ...]
    size_bytes: int


def parcels(trashed: Sequence[TrashRow], entries: Mapping[str, StoreEntry]) -> list[Parcel]:
    """What purging would free, in the order of ``trashed``; nothing of which a name outside of it remains."""
    groups: dict[object, list[TrashRow]] = {}
    for each in trashed:
        if (entry := entries.get(each.archive)) is not None:
            rows = groups.pop(_content(entry), [])
            groups[_content(entry)] = [*rows, each]  # anew, so that it stands where its last row does
    found: list[Parcel] = []
    for rows in groups.values():
        entry = entries[rows[0].archive]
        if entry.links <= len(rows):
            found.append(Parcel(tuple(rows), entry.size))
    return found


def real_usage_by_run(holdings: Sequence[CheckpointHolding], entries: Mapping[str, StoreEntry]) -> dict[str, Usage]:
    """Every byte once, for the first of those that share it. What is not in the store takes nothing."""
    seen: set[object] = set()
    usage: dict[str, Usage] = {}
    for holding in holdings:
        entry = entries.get(holding.archive)
        is_first = entry is not None and _content(entry) not in seen
        size_bytes = entry.size if entry is not None and is_first else 0
        if entry is not None:
            seen.add(_content(entry))
        was = usage.get(holding.run_id, Usage(0, 0))
        usage[holding.run_id] = Usage(was.count + 1, was.size_bytes + size_bytes)
    return usage


def _content(entry: StoreEntry) -> object:
    return entry.name if entry.content is None else entry.content
