"""The journal writer: one thread that writes to all journals, in the order of the appends.

Records that wait are written and synced together. If the disk fails, the writer cuts off half-written records, keeps
all records in their order, and retries until it succeeds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final

from chockstone.engine.journal.format import JournalError
from chockstone.engine.journal.segment_file import JournalEntry, SegmentFile
from chockstone.telemetry.instruments import Instruments

RETRY_SECONDS: Final = 0.5
GIVE_UP_SECONDS: Final = 1.0
STALL_SECONDS: Final = 40.0  # clients time out after 45
BATCH_BYTES: Final = 16 << 20  # what was written is acknowledged after about this much,
BATCH_ENTRIES: Final = 1024  # or so many records
_CAUSES: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file system or a ulimit does not allow files this large",
    errno.EIO: "the disk fails",
    errno.EROFS: "the file system is read-only",
}
log = logging.getLogger(__name__)


class Stalled(Exception):
    """The request could not be written down in time. Answered with 503; a repeat of it gets the same id."""


class JournalWriter:
    """One per server. All but the constructor is for the event loop that appends."""

    def __init__(self, *, synced: bool, instruments: Instruments | None = None) -> None:
        """``synced``: durable records survive a power failure, too, at the cost of an fdatasync per batch and file."""
        self._instruments = instruments
        self.trouble: str | None = None
        self.synced = synced
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards all below
        self._entries: deque[JournalEntry] = deque()
        self._chores: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._give_up_at = 0.0
        self._failure: str | None = None  # the thread's own view of ``trouble``
        self._retry_at = 0.0
        self._open: set[SegmentFile] = set()

    @property
    def waiting_records(self) -> int:
        """Records that are not durable yet."""
        return len(self._entries)

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest record that is not durable yet; 0 if there is none."""
        with self._changed:
            return monotonic() - self._entries[0].since if self._entries else 0.0

    async def close(self) -> None:
        """Write what was appended, then close; if the disk fails, give up after a second. Idempotent."""
        with self._changed:
            if not self._is_closing:
                self._is_closing = True
                self._give_up_at = monotonic() + GIVE_UP_SECONDS
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def submit(self, entry: JournalEntry) -> None:
        """For journals: write it after all that was submitted before. Raises JournalError once closed."""
        with self._changed:
            if self._is_closing:
                raise JournalError(
                    f"record {entry.sequence} of {str(entry.file.path)!r}: the journal's writer is closed"
                )
            self._entries.append(entry)
            self._changed.notify()
        self._start()

    def soon(self, chore: Callable[[], None]) -> None:
        """For journals: do it in the thread, ahead of what waits to be written. Dropped once closed."""
        with self._changed:
            if self._is_closing:
                return
            self._chores.append(chore)
            self._changed.notify()
        self._start()

    async def do(self, chore: Callable[[], None]) -> None:
        """For journals: the same, and wait for it; also when the thread has ended."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        def chore_and_tell() -> None:
            try:
                chore()
            except Exception as error:  # noqa: BLE001  # raised where it is awaited
                self._on_loop(tell, error)
            else:
                self._on_loop(tell, None)

        if self._is_closing:
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join)
            await asyncio.to_thread(chore)
            return
        self.soon(chore_and_tell)
        await done

    def abandon(self, directory: Path, why: str) -> None:
        """A chore: what waits to be written there never will be, and nothing there stays open."""
        with self._changed:
            dropped = [entry for entry in self._entries if entry.file.path.parent == directory]
            self._entries = deque(entry for entry in self._entries if entry.file.path.parent != directory)
        self._end(dropped, JournalError(why))
        for file in [file for file in self._open if file.path.parent == directory]:
            file.close()
            self._open.discard(file)

    def _start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    def _on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, and with it every waiting client
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _run(self) -> None:
        while (turn := self._next_turn()) is not None:
            chores, batch = turn
            for chore in chores:
                try:
                    chore()
                except Exception as error:  # noqa: BLE001  # recorded; the thread must go on
                    log.warning("journal not tidied error=%s", error)
            if batch:
                self._write(batch)
        with self._changed:
            given_up, self._entries = list(self._entries), deque()
        self._end(given_up, JournalError(f"the server stopped before it was written: {self._failure}"))
        for file in self._open:
            file.close()

    def _next_turn(self) -> tuple[list[Callable[[], None]], list[JournalEntry]] | None:
        """What to do next, chores first; None: nothing more, ever."""
        with self._changed:
            while True:
                if self._chores:
                    chores = list(self._chores)
                    self._chores.clear()
                    return chores, []
                now = monotonic()
                if not self._entries:
                    self._say(None)
                    if self._is_closing:
                        return None
                    self._changed.wait()
                elif self._failure is None or now >= self._retry_at:
                    return [], self._next_batch()
                elif self._is_closing and now >= self._give_up_at:
                    return None
                else:
                    self._changed.wait(max(0.0, min(self._retry_at, self._give_up_at or self._retry_at) - now))

    def _next_batch(self) -> list[JournalEntry]:
        batch: list[JournalEntry] = []
        files: set[SegmentFile] = set()
        size = 0
        for entry in self._entries:
            is_full = size >= BATCH_BYTES or len(batch) >= BATCH_ENTRIES
            if is_full or (self.synced and entry.file.replaces in files):
                break  # a segment is durable before there is a next one
            batch.append(entry)
            files.add(entry.file)
            size += entry.end - entry.offset
        return batch

    def _write(self, batch: list[JournalEntry]) -> None:
        written: list[JournalEntry] = []
        failure: str | None = None
        place: Path | None = None  # of the failure
        started, synced_after = perf_counter(), None
        try:
            for entry in batch:
                self._open.add(entry.file)
                entry.file.put(entry)
                written.append(entry)
        except Exception as error:  # noqa: BLE001  # becomes the trouble
            failure, place = _cause(error), batch[len(written)].file.path.parent
        if written:
            try:
                if self.synced:
                    begun = perf_counter()
                    for file in dict.fromkeys(entry.file for entry in written):
                        file.sync()
                    synced_after = perf_counter() - begun
            except Exception as error:  # noqa: BLE001  # becomes the trouble
                # The kernel may have dropped what it could not write, and another sync would not say so: write again.
                failure, place = _cause(error), written[0].file.path.parent
                for file in dict.fromkeys(entry.file for entry in written):
                    file.cut(file.size)
                written = []
        if written:
            try:
                _write_marks(written)
            except Exception as error:  # noqa: BLE001  # becomes the trouble
                # The records stay: a mark of another journal may be written already, and is never ahead of its records.
                failure, place = _cause(error), written[0].file.path.parent
                written = []
        self._retry_at = monotonic() + RETRY_SECONDS
        self._measure(written, failure, seconds=perf_counter() - started, sync_seconds=synced_after)
        self._say(failure, place)
        self._commit(written)

    def _measure(
        self, written: list[JournalEntry], failure: str | None, *, seconds: float, sync_seconds: float | None
    ) -> None:
        if self._instruments is None:
            return
        if failure is not None:
            self._instruments.journal_failed()
        if written:
            size_bytes = sum(entry.end - entry.offset for entry in written)
            self._instruments.journal_written(
                records=len(written), size_bytes=size_bytes, seconds=seconds, sync_seconds=sync_seconds
            )

    def _commit(self, written: list[JournalEntry]) -> None:
        for entry in written:
            entry.file.size = entry.end
            if (replaced := entry.file.replaces) is not None:
                entry.file.replaces = None
                replaced.close()
                self._open.discard(replaced)
        with self._changed:
            for _ in written:
                self._entries.popleft()
        self._end(written, None)

    def _end(self, entries: list[JournalEntry], error: Exception | None) -> None:
        def tell() -> None:
            for entry in entries:
                entry.on_end(error)

        if entries:
            self._on_loop(tell)

    def _say(self, failure: str | None, place: Path | None = None) -> None:
        """Only the log has the place, which names a run: the failure is shown to every user, and to probes."""
        if failure == self._failure:
            return
        self._failure = failure
        if failure is None:
            log.warning("journal is written again")
        else:
            log.error("journal not written error=%s path=%s", failure, place)
        self._on_loop(self._set_trouble, failure)

    def _set_trouble(self, failure: str | None) -> None:
        self.trouble = failure


def _write_marks(written: list[JournalEntry]) -> None:
    """The last one of each journal. They are not synced: one that is too old finds less, and never too much."""
    newest = {entry.mark_file: entry.mark for entry in written if entry.mark_file is not None}
    for file, mark in newest.items():
        if mark is not None:
            file.write(mark)


def _cause(error: Exception) -> str:
    if isinstance(error, OSError):
        return _CAUSES.get(error.errno or 0, error.strerror or type(error).__name__)
    return str(error) or repr(error)


async def wait_until_durable(
    durable: asyncio.Future[None], writer: JournalWriter, *, timeout_seconds: float = STALL_SECONDS
) -> None:
    """Returns when the record is durable. Raises Stalled when it is not in time; it stays in line to be written."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.shield(durable)  # a caller that goes away does not take the record with it
    except TimeoutError:
        reason = writer.trouble or "the disk is slow"
        raise Stalled(
            f"the request could not be written to the journal within {timeout_seconds:g} seconds: {reason}. "
            f"Send it again; it is taken as soon as there is a place for it."
        ) from None
    except JournalError as error:
        raise Stalled(f"the request was not taken: {error}. Send it again once the server is back.") from error
