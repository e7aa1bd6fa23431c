"""Stores: where archives live, by name. An archive is there whole or not at all.

A name is ``component/component/…``; its archive is the file or object ``<name>.tar``.
The contract of a store:

- ``Sink.commit`` makes the archive durable and visible in one step. Without ``overwrite`` it fails
  with ``CheckpointExists`` if the name is taken, however close the race; with it, readers see the
  old archive or the new one, whole.
- A name that ``entries`` lists was committed. Unfinished writes are never visible under any name.
- ``delete`` is idempotent: of any number of concurrent calls one returns True, none fails. (An object
  store that ignores If-Match on DELETE may say True to several that overlap.)
- Every failure is a ``StoreError``; only ``CheckpointMissing`` means "is not there".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from chockstone.checkpoints.errors import InvalidName

SUFFIX: Final = ".tar"
MAX_COMPONENT: Final = 251  # with the suffix, what file systems allow
MAX_NAME: Final = 800

_COMPONENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A committed archive as the store sees it, without opening it."""

    name: str
    size: int
    modified_at: datetime
    content: tuple[int, int] | None = None  # the same for all that share their bytes; None: they share none
    links: int = 1  # names that its bytes have, in the store and outside: they are free when the last one goes


@dataclass(frozen=True, slots=True)
class PartialWrite:
    """Data that an interrupted write left behind."""

    place: str
    size: int
    age_seconds: float


class Sink(Protocol):
    """One archive being written. ``write_at`` may be called from several threads at once."""

    def write_at(self, offset: int, data: memoryview) -> None:
        """Offsets and lengths are whole pages; every byte of the planned size is written once."""

    def share(self) -> str:
        """A ticket with which other processes ``join`` the writing. StoreError where they cannot."""

    def settle(self, receipts: Sequence[str]) -> None:
        """Take what others wrote into account, by their receipts. StoreError for one that cannot be right."""

    def commit(self, *, overwrite: bool) -> None:
        """Make everything written durable, then visible: by this process and, once settled, by others.

        After an error nothing is visible, unless a StoreUnreachable says that it cannot tell.
        """

    def abort(self) -> None:
        """Leave nothing behind. Harmless after ``commit`` and when called twice."""


class SharedSink(Protocol):
    """A part of an archive that another process began and commits or aborts.

    Each unit of ``unit_bytes`` is written by one process. A sweep does not spare it: when the owner has
    ended, bytes that are written here are lost.
    """

    def write_at(self, offset: int, data: memoryview) -> None:
        """As of a Sink; no byte that another process writes."""

    def finish(self) -> str:
        """Make everything written here durable; the receipt for it. Nothing is written after that."""

    def close(self) -> None:
        """Let go of the archive. Harmless after ``finish`` and when called twice."""


class ArchiveSource(Protocol):
    """An archive open for reading.

    It stays readable when its name is deleted or overwritten, where the store can keep it; elsewhere
    reading then fails, and never mixes two archives.
    """

    @property
    def size(self) -> int: ...

    @property
    def run_bytes(self) -> int:
        """How much to ask for at once when reading a lot."""

    @property
    def readers(self) -> int:
        """How many threads read at full speed."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill ``target``; thread-safe. ``TruncatedArchive`` when the source ends before it is full."""

    def map(self) -> memoryview | None:
        """All of it as private, writable memory; None where bytes must be fetched to be seen."""

    def descriptor(self) -> int | None:
        """Of the open file, for reading it in other ways; None where there is none. It stays the source's own."""

    def close(self) -> None: ...


class Store(Protocol):
    """Where archives live. ``open_store`` makes one from a URL; implement this protocol for another kind of storage."""

    @property
    def url(self) -> str:
        """Of the whole store, for messages and receipts."""

    def begin(self, name: str, size: int) -> Sink:
        """Start to write an archive of exactly ``size`` bytes. It becomes visible when the sink commits it."""

    def join(self, name: str, size: int, ticket: str) -> SharedSink:
        """Write to an archive that another process began, and whose ``share`` gave the ticket."""

    def unit_bytes(self, size: int) -> int:
        """The unit that one process must write whole, in an archive of that size: from each multiple to the next.

        1 where processes may divide the archive freely, in pages; ``size`` where only its owner writes.
        """

    def open(self, name: str) -> ArchiveSource:
        """Open a committed archive for reading. Raises CheckpointMissing if there is none of this name."""

    def entries(self, prefix: str = "") -> Iterator[StoreEntry]:
        """Committed archives at or below ``prefix``, in order of their names."""

    def stat(self, name: str) -> StoreEntry:
        """Size and time of a committed archive. Raises CheckpointMissing if there is none of this name."""

    def delete(self, name: str) -> bool:
        """Whether this call is the one that removed it."""

    def copy(self, name: str, target: str, *, overwrite: bool = False) -> None:
        """Make ``target`` the same archive, without moving its bytes through this process."""

    def free_bytes(self) -> int | None:
        """Room left, or None where the store has no such limit."""

    def sweep(self, *, min_age_seconds: float = 0.0, dry_run: bool = False) -> list[PartialWrite]:
        """Remove what interrupted writes left. Writes in progress are never removed.

        Object stores have no locks that end with their writer, so they spare everything younger than a day.
        """


def check_name(name: str) -> None:
    """Refuse names that could leave the store or mean different things on different systems."""
    components = name.split("/")
    sound = all(_COMPONENT.match(part) and len(part) <= MAX_COMPONENT for part in components)
    if not sound or len(name) > MAX_NAME:
        raise InvalidName(
            f"{name[:300]!r} cannot name a checkpoint: use letters, digits, '.', '_' and '-' between slashes, "
            f"no component that starts with '.' or exceeds {MAX_COMPONENT} characters, {MAX_NAME} in all"
        )


def open_store(url: str | Path | Store) -> Store:
    """A store by URL: a path or ``file://`` for a directory, ``s3://``, ``gs://``, ``az://`` for object stores."""
    if not isinstance(url, str | Path):
        return url
    text = str(url)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in {"", "file"}:
        from chockstone.checkpoints.stores.file_store import FileStore

        return FileStore(Path(file_path(text)) if scheme else Path(text))
    if scheme in {"s3", "gs", "az"}:
        from chockstone.checkpoints.stores.object_store import ObjectStore

        return ObjectStore.from_url(text)
    raise InvalidName(f"{text!r} is not a store: use a directory, file://, s3://, gs:// or az://")


def file_path(url: str) -> str:
    """The path that a ``file://`` URL means."""
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path or parts.query or parts.fragment:
        raise InvalidName(f"{url!r} is not a file URL: write file:///absolute/path")
    return unquote(parts.path)
