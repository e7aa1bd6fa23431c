"""Imports: a checkpoint of another program becomes an archive of a store.

    import_checkpoint("old.pt", "./checkpoints", prefix="run-1", step=1000)

The archive is committed complete or not at all. It is the newest below its prefix, as if it had been saved now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chockstone.checkpoints.errors import CheckpointExists, CheckpointMissing, ImportRefused, InvalidName
from chockstone.checkpoints.reading.listing import list_checkpoints
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.clock import Clock
from chockstone.checkpoints.state_archive import write_state
from chockstone.checkpoints.stores.store import Store, check_name, open_store
from chockstone.integrations.formats.reading.foreign_checkpoint import ForeignCheckpoint, FormatName, LeftOut
from chockstone.integrations.formats.reading.parts import account
from chockstone.integrations.formats.reading.recognition import read_foreign

IMPORTED: Final = "imported"  # the key of the archive's metadata that says where a checkpoint came from


@dataclass(frozen=True, slots=True)
class ImportedCheckpoint:
    """A checkpoint that is durable and visible in the store, and what it was made of."""

    source: ForeignCheckpoint
    name: str
    url: str
    step: int | None
    size_bytes: int  # of the archive
    seconds: float


@dataclass(frozen=True, slots=True)
class ImportPlace:
    """Where and as what an import is stored. Without a name: the step, or the name of the source."""

    prefix: str = ""
    name: str | None = None
    step: int | None = None  # None: the one that the source tells
    kind: str = "weights"

    def full_name(self, source: Path, step: int | None) -> str:
        """The name in the store. Raises InvalidName."""
        name = self.name or (f"step-{step:08d}" if step is not None else source.resolve().name.partition(".")[0])
        full = f"{self.prefix}/{name}" if self.prefix else name
        try:
            check_name(full)
        except InvalidName as error:
            raise error if self.name or self.prefix else InvalidName(f"{error}. Pass --name or --step") from None
        return full


def import_checkpoint(
    source: str | Path,
    store: str | Path | Store,
    *,
    name: str | None = None,
    prefix: str = "",
    step: int | None = None,
    kind: str = "weights",
    source_format: FormatName | None = None,
) -> ImportedCheckpoint:
    """Store the checkpoint at ``source`` under a name that is not taken. Durable on return.

    ``source_format``: the program that wrote it; None recognises it by its content. Raises ImportRefused with nothing
    stored if the source is damaged or holds what must not be read, and UnstorableValue for what an archive cannot hold.
    """
    place = ImportPlace(prefix, name, step, kind)
    return store_foreign(read_foreign(Path(source), source_format), Path(source), open_store(store), place)


def store_foreign(
    found: ForeignCheckpoint,
    source: Path,
    store: Store,
    place: ImportPlace,
    *,
    on_plan: Callable[[int], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> ImportedCheckpoint:
    """Write a checkpoint that was read. ``on_plan`` gets the size of the archive before its first byte is written."""
    started = time.perf_counter()
    step = found.step if place.step is None else place.step
    name = place.full_name(source, step)
    refuse_taken(store, name)

    def planned(size: int) -> None:
        Admission().check(store, prefix=place.prefix, name=name, size=size)
        on_plan(size)

    saved = write_state(
        store,
        name,
        found.state,
        files=found.files,
        kind=place.kind,
        step=step,
        metadata={IMPORTED: {"format": found.format, "source": source.name}},
        created_at=_stamp(store, place.prefix, now),
        on_bytes=on_bytes,
        on_plan=planned,
        check=found.check,
    )
    return ImportedCheckpoint(found, name, store.url, step, saved.size_bytes, time.perf_counter() - started)


def refuse_taken(store: Store, name: str) -> None:
    """Raise CheckpointExists if the name is taken, before anything is read in full."""
    try:
        store.stat(name)
    except CheckpointMissing:
        return
    raise CheckpointExists(f"checkpoint {name!r} exists already in {store.url}; pass another --name or --prefix")


def put_under(found: ForeignCheckpoint, key: str) -> ForeignCheckpoint:
    """The same checkpoint with its whole state below one key."""
    state = {key: found.state}
    sources = {part.source for part in found.taken}
    return replace(found, state=state, taken=account(state, ", ".join(sorted(sources))))


def leave_out(found: ForeignCheckpoint, keys: Collection[str]) -> ForeignCheckpoint:
    """The same checkpoint without these top-level keys. Raises ImportRefused for a key that it does not have."""
    missing = [key for key in keys if key not in found.state]
    if missing:
        raise ImportRefused(
            f"there is no key {missing[0]!r} to leave out; the checkpoint has {', '.join(found.state)[:200]}"
        )
    state = {key: value for key, value in found.state.items() if key not in keys}
    taken = tuple(part for part in found.taken if part.key not in keys)
    left_out = (*found.left_out, *(LeftOut(key, "left out by --without") for key in keys))
    return replace(found, state=state, taken=taken, left_out=left_out)


def _stamp(store: Store, prefix: str, now: Callable[[], datetime]) -> datetime:
    """A timestamp later than those of all checkpoints below the prefix."""
    clock = Clock(now)
    for checkpoint in list_checkpoints(store, prefix):
        if checkpoint.manifest is not None:
            clock.observe(checkpoint.manifest.created_at)
    return clock.stamp()
