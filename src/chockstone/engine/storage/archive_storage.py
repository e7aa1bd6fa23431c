"""Storage: the server's archives, reached without the worker.

Everything that touches the disk runs in threads of its own: short work in some, reading whole
archives in others, so that a delete never waits for a verification.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from chockstone.checkpoints import Archive, Store, verify_archive
from chockstone.checkpoints.errors import CheckpointMissing, DamagedArchive, ForeignArchive, SealMismatch, StoreError
from chockstone.checkpoints.file_archive import SavedFiles
from chockstone.checkpoints.reading.archive import read_head
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.state_archive import write_state
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.store import PartialWrite, StoreEntry

T = TypeVar("T")
_THREADS: Final = 4
_FEW: Final = 20  # archives that are asked for one by one
_READERS: Final = 2  # archives read in full at a time, each by several threads


class StorageClosed(StoreError):
    """The server is stopping; what was being read is left unread."""


class ArchiveStorage:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(_THREADS, "storage")
        self._readers = ThreadPoolExecutor(_READERS, "storage-reader")
        self._closing = threading.Event()

    async def open(self, archive: str, *, seal: str | None = None) -> Archive:
        """Its structure is checked, not its tensors. The caller closes it; it outlives a delete.

        With a ``seal`` any other archive in its place is a DamagedArchive.
        """
        opening = self._threads.submit(copy_context().run, self._open, archive, seal)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise

    async def stat(self, archive: str) -> StoreEntry:
        return await self._run(self.store.stat, archive)

    async def names(self, prefix: str = "") -> list[str]:
        """Of all archives, or of those below ``prefix``."""
        return await self._run(lambda: [entry.name for entry in self.store.entries(prefix)])

    async def look_up(self, archives: Iterable[str]) -> dict[str, StoreEntry]:
        """Those of them that are there."""
        return await self._run(partial(self._look_up, archives))

    async def lend(
        self, archive: str, *, method: str, seconds: int, filename: str, content_type: str, seal: str | None = None
    ) -> str | None:
        """A URL of an archive that is there, good for as long without credentials; None where the store has none.

        With a ``seal`` the ends of the archive are read first: two small requests. Raises CheckpointMissing,
        DamagedArchive, StoreError.
        """
        store = self.store
        if not isinstance(store, ObjectStore):
            return None

        def lend() -> str | None:
            if seal is None:
                store.stat(archive)
            else:
                self._check_seal(archive, seal)
            return store.presign(archive, method=method, seconds=seconds, filename=filename, content_type=content_type)

        return await self._run(lend)

    async def write(
        self,
        archive: str,
        state: Mapping[str, object],
        *,
        kind: str,
        step: int,
        metadata: Mapping[str, Any],  # Any: plain JSON
        created_at: datetime,
        admission: Admission,
    ) -> SavedFiles:
        """Commit an archive of a state that does not change. One of the same name is replaced. Raises AdmissionRefused,
        StoreError."""

        def write() -> SavedFiles:
            self.store.delete(archive)
            return write_state(
                self.store,
                archive,
                state,
                kind=kind,
                step=step,
                metadata=metadata,
                created_at=created_at,
                on_plan=lambda size: admission.check(self.store, prefix="", name=archive, size=size),
            )

        return await asyncio.wrap_future(self._readers.submit(copy_context().run, write))

    async def delete(self, archive: str) -> bool:
        """Whether this call is the one that removed it."""
        return await self._run(self.store.delete, archive)

    async def copy(self, archive: str, target: str) -> None:
        """Make ``target`` the same archive, sharing its bytes where the store can."""
        await self._run(self.store.copy, archive, target)

    async def verify(self, archive: str, *, bytes_per_second: float | None = None, seal: str | None = None) -> str:
        """Read all of it and check every digest; its seal. Raises DamagedArchive, or CheckpointMissing.

        Other errors say nothing about the archive: a store that cannot be reached, a newer format.
        """
        return await asyncio.wrap_future(
            self._readers.submit(copy_context().run, self._verify, archive, bytes_per_second, seal)
        )

    async def free_bytes(self) -> int | None:
        """Room left on the disk; None where the store has no such limit."""
        return await self._run(self.store.free_bytes)

    async def sweep_partials(self, *, min_age_seconds: float) -> list[PartialWrite]:
        """Remove what killed processes left half-written."""
        return await self._run(partial(self.store.sweep, min_age_seconds=min_age_seconds))

    async def prune(self, *, min_age_seconds: float) -> int:
        """Remove directories that have been empty for as long; how many."""
        if not isinstance(self.store, FileStore):
            return 0
        return await self._run(partial(self.store.prune, min_age_seconds=min_age_seconds))

    def close(self) -> None:
        """Give up what is being read in full; wait for the rest."""
        self._closing.set()
        self._threads.shutdown()
        self._readers.shutdown(cancel_futures=True)

    async def _run(self, work: Callable[..., T], *values: str) -> T:
        return await asyncio.wrap_future(self._threads.submit(copy_context().run, work, *values))

    def _look_up(self, archives: Iterable[str]) -> dict[str, StoreEntry]:
        wanted = list(archives)
        if isinstance(self.store, ObjectStore) and len(wanted) > _FEW:  # a page of a list takes one request, too
            listed = {entry.name: entry for entry in self.store.entries()}
            return {archive: listed[archive] for archive in wanted if archive in listed}
        found: dict[str, StoreEntry] = {}
        for archive in wanted:
            with suppress(CheckpointMissing):
                found[archive] = self.store.stat(archive)
        return found

    def _open(self, archive: str, seal: str | None = None) -> Archive:
        try:
            return Archive(self.store.open(archive), seal=seal)
        except ForeignArchive as error:
            raise DamagedArchive(str(error)) from error  # a server wrote it, so this is not what was written

    def _check_seal(self, archive: str, seal: str) -> None:
        source = self.store.open(archive)
        try:
            found = read_head(source).seal
        except ForeignArchive as error:
            raise DamagedArchive(str(error)) from error
        finally:
            source.close()
        if found != seal:
            raise SealMismatch(expected=seal, found=found)

    def _verify(self, archive: str, bytes_per_second: float | None, seal: str | None) -> str:
        pace = _Pace(bytes_per_second, self._closing)
        with self._open(archive, seal) as opened:
            verify_archive(opened, on_bytes=pace.took)
            return opened.seal


class _Pace:
    """Holds readers back to a rate, and ends them when the server does."""

    def __init__(self, bytes_per_second: float | None, closing: threading.Event) -> None:
        self._rate = bytes_per_second
        self._closing = closing
        self._lock = threading.Lock()
        self._due = time.monotonic()

    def took(self, size: int) -> None:
        if self._rate is not None:
            with self._lock:
                self._due = max(self._due, time.monotonic()) + size / self._rate
                delay = self._due - time.monotonic()
            self._closing.wait(delay)
        if self._closing.is_set():
            raise StorageClosed("the server is stopping")


def _close(opening: Future[Archive]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
