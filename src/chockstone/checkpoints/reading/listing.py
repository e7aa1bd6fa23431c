"""Listings: the checkpoints of a store with their manifests, or with the damage that prevents reading them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DamagedArchive,
    ForeignArchive,
    StoreUnreachable,
    UnsupportedArchive,
)
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.reading.archive import read_head
from chockstone.checkpoints.stores.store import Store, StoreEntry

_WIDTH: Final = 8  # heads read at once
_LISTINGS: Final = 3  # at most, while another process deletes what was listed
RECOVERY: Final = "recovery"
_NEVER: Final = datetime.fromtimestamp(0, UTC)
_SET_ASIDE: Final = re.compile(r"\.damaged-[0-9]+\Z")  # the end of the names that ``set_aside`` gives


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One archive of a store. Where its head cannot be read, ``manifest`` is None and ``damage`` says why.

    ``is_newer``: the archive is sound, but of a format that this version does not read.
    """

    name: str
    size: int
    modified_at: datetime
    manifest: Manifest | None
    damage: str | None = None
    is_newer: bool = False
    seal: str | None = None  # None where the head cannot be read

    @property
    def is_for_recovery(self) -> bool:
        """Whether a server saved it to recover a run: it is not listed to users, and no retention policy removes it."""
        return self.manifest is not None and self.manifest.kind == RECOVERY

    @property
    def order(self) -> tuple[datetime, int, str]:
        """The sort key, newest last: by timestamp, then by step, then by name."""
        if self.manifest is None:
            return _NEVER, -1, self.name
        return self.manifest.created_at, -1 if self.manifest.step is None else self.manifest.step, self.name


def is_set_aside(name: str) -> bool:
    """Whether this is the name of a damaged archive whose own name a later save has taken."""
    return _SET_ASIDE.search(name) is not None


def list_checkpoints(store: Store, prefix: str = "") -> list[StoredCheckpoint]:
    """Every committed archive below ``prefix``, oldest first. Reads the head of each archive, not its tensors.

    Lists again if an archive was deleted after it was listed, because its writer may have saved a newer one. Raises
    where the store cannot be read: an incomplete list must not look complete.
    """
    found: list[StoredCheckpoint] = []
    for _ in range(_LISTINGS):
        entries = list(store.entries(prefix))
        if not entries:
            return []
        found = [checkpoint for checkpoint in _read_all(store, entries) if checkpoint]
        if len(found) == len(entries):
            break
    if not found:
        place = f"{store.url}/{prefix}" if prefix else store.url
        raise StoreUnreachable(
            f"cannot list the checkpoints in {place}: another process deleted all of them each time before they were "
            "read. Try again"
        )
    return sorted(found, key=lambda checkpoint: checkpoint.order)


def _read_all(store: Store, entries: list[StoreEntry]) -> list[StoredCheckpoint | None]:
    try:
        with ThreadPoolExecutor(min(_WIDTH, len(entries)), "list-checkpoints") as pool:
            return list(pool.map(lambda entry: _read_twice(store, entry), entries))
    except RuntimeError:  # the interpreter is ending and starts no more threads
        return [_read_twice(store, entry) for entry in entries]


def _read_twice(store: Store, entry: StoreEntry) -> StoredCheckpoint | None:
    found = _read(store, entry)
    if found is not None and found.damage is not None and not found.is_newer:
        found = _read(store, entry)  # the fault may have been in the transfer
    return found


def _read(store: Store, entry: StoreEntry) -> StoredCheckpoint | None:
    try:
        source = store.open(entry.name)
    except CheckpointMissing:
        return None  # deleted since it was listed
    try:
        head = read_head(source)
    except CheckpointMissing:
        return None  # as above
    except (DamagedArchive, ForeignArchive, UnsupportedArchive) as error:
        newer = isinstance(error, UnsupportedArchive)
        return StoredCheckpoint(entry.name, entry.size, entry.modified_at, None, str(error), newer)
    finally:
        source.close()
    if is_set_aside(entry.name):
        damage = "a save of the same name found it damaged and set it aside"
        return StoredCheckpoint(entry.name, entry.size, entry.modified_at, None, damage)
    return StoredCheckpoint(entry.name, entry.size, entry.modified_at, head.manifest, seal=head.seal)
