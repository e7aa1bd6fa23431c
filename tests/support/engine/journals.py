"""Journals for tests: made, filled, and read as whoever opens them next would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from chockstone.engine.journal.format import segment_name
from chockstone.engine.journal.journal import Journal, JournalDamaged, JournalWriter, Record


@asynccontextmanager
async def opened(directory: Path, *, synced: bool = False, segment_bytes: int = 64 << 20) -> AsyncIterator[Journal]:
    """With a writer of its own."""
    writer = JournalWriter(synced=synced)
    try:
        journal = await Journal.open(directory, writer, segment_bytes=segment_bytes)
        yield journal
        await journal.close()
    finally:
        await writer.close()


async def write(directory: Path, bodies: Sequence[bytes], *, rotate_before: int | None = None) -> list[Record]:
    """A journal with a record per body, in one segment or two."""
    records = []
    async with opened(directory) as journal:
        for index, body in enumerate(bodies):
            if index == rotate_before:
                journal.rotate({"about": "the run"})
            records.append(journal.append({"kind": "operation", "index": index}, body).record)
    return records


async def bodies_of(journal: Journal) -> dict[int, bytes | None]:
    """By sequence; None for those that are damaged, which must not be handed out."""
    found: dict[int, bytes | None] = {}
    for record in journal.records:
        try:
            found[record.sequence] = await journal.read(record)
        except JournalDamaged:
            assert record.damage is not None
            found[record.sequence] = None
    return found


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def named(*firsts: int) -> list[str]:
    return [segment_name(first) for first in firsts]
