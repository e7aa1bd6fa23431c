"""The checkpointer: saves that cost a trainer one memory copy, and restores that say what came back.

    with Checkpointer("file:///checkpoints", prefix="run-1") as checkpointer:
        handle = checkpointer.save({"model": model, "optimizer": optimizer}, step=100)
        ...                                   # training goes on while the archive is written
        handle.result()                       # durable

Memory: ``buffers`` snapshots at most, one by default, kept for the next save. A save that finds all
of them in use waits for its turn, in the order of the calls.

Where torch.distributed has several ranks they save one archive together: each copies and writes what it has of
DTensors and Pieces, and of other tensors, which all have, its share; values that are no tensors are those of rank 0.
All ranks must call ``save``, ``restore`` and ``close`` in the same order, with the same arguments and from one thread.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, Unpack

from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    RestoreFailed,
    SaveFailed,
    UnsupportedArchive,
)
from chockstone.checkpoints.format.layout import Member
from chockstone.checkpoints.ranks.coordinator import RankCoordinator
from chockstone.checkpoints.reading.archive import Archive, Verify
from chockstone.checkpoints.reading.listing import StoredCheckpoint, list_checkpoints
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.restoring.export import export_members
from chockstone.checkpoints.restoring.receipt import RestoreReceipt, SkippedCandidate
from chockstone.checkpoints.restoring.restore import load_state, restore_state
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.runtime.threads import in_thread as _in_thread
from chockstone.checkpoints.runtime.threads import lower_priority
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.buffers import Buffers
from chockstone.checkpoints.saving.clock import Clock
from chockstone.checkpoints.saving.handle import SaveHandle
from chockstone.checkpoints.saving.job import SaveJob, SaveRequest, check_ttl, copy_files, copy_metadata
from chockstone.checkpoints.saving.pace import Pace
from chockstone.checkpoints.saving.snapshot import Snapshotter
from chockstone.checkpoints.stores.store import Store, check_name, open_store

log = logging.getLogger(__name__)
_HALF_RESTORED: Final = "the target is half restored; do not go on with it."
T = TypeVar("T")


class SaveOptions(TypedDict, total=False):
    """What a save may be told besides the state."""

    step: int | None
    name: str | None  # default: the step, e.g. "step-00000100"
    kind: str  # default: "weights"
    metrics: Mapping[str, float]  # for Retention(keep_best=…)
    metadata: Mapping[str, Any]  # plain JSON of your own
    files: Mapping[str, bytes]  # extra members, e.g. {"config.json": b"…"}
    pinned: bool  # retention never removes it
    ttl_seconds: float | None
    overwrite: bool
    admission: Admission | None  # for this save, instead of the checkpointer's


class Checkpointer:
    """Saves to and restores from one prefix of one store. May be used from several threads."""

    def __init__(
        self,
        store: str | Path | Store,
        *,
        prefix: str = "",
        retention: Retention | None = None,
        admission: Admission | None = None,
        buffers: int = 1,
        bytes_per_second: float | None = None,
        scan_store: bool = True,
        ranks: Literal["auto", "off"] = "auto",
        rank_timeout_seconds: float = 300.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``bytes_per_second``: how fast to write while nobody waits for it; see ``pace``. None: as fast as it goes.

        ``scan_store``: the first save removes what killed processes left, and reads the head of every archive below
        the prefix, so as not to seem older than any. False is for those who tidy up and keep order themselves.

        ``ranks="off"``: this process saves and restores for itself, whatever torch.distributed says. A rank that
        says nothing for ``rank_timeout_seconds`` is lost to the others, however long all take to write and to read.
        """
        if prefix:
            check_name(prefix)
        if bytes_per_second is not None and not 0 < bytes_per_second < math.inf:
            raise ValueError(f"bytes_per_second={bytes_per_second!r}: give a positive number, or None for no limit")
        self._company = RankCoordinator(ranks=ranks, timeout_seconds=rank_timeout_seconds)
        self.store = open_store(store)
        self.prefix = prefix
        self.retention = retention
        self.admission = admission or Admission()
        self._bytes_per_second = bytes_per_second or math.inf
        self._clock = Clock(now)
        self._buffers = Buffers(buffers)
        self._last: SaveHandle | None = None  # saves are written one after the other
        self._lock = threading.RLock()
        self._handles: list[SaveHandle] = []
        self._closed = False
        self._has_saved = not scan_store
        _open_checkpointers.add(self)

    def save(self, state: Mapping[str, object], **options: Unpack[SaveOptions]) -> SaveHandle:
        """Copy ``state`` and write it in the background; returns when it may be changed again.

        Raises SaveFailed when an earlier save failed and its handle was never looked at.
        """
        request, handle = self._open(options)
        ticket = self._ticket()
        try:
            snapshotter = ticket.result()
            self._raise_unseen()  # the save we waited for may have failed
        except BaseException as error:
            self._give_up(ticket, handle, error)
            raise
        self._copy_and_write(snapshotter, state, request, handle)
        return handle

    async def save_async(self, state: Mapping[str, object], **options: Unpack[SaveOptions]) -> SaveHandle:
        """As ``save``, with the copy off the event loop. Do not change ``state`` before this returns.

        When the awaiting task is cancelled the save is abandoned: it never becomes visible, unless it
        was committed already.
        """
        request, handle = self._open(options)
        ticket = self._ticket()
        try:
            snapshotter = await asyncio.wrap_future(ticket)
            self._raise_unseen()
        except BaseException as error:
            self._give_up(ticket, handle, error)
            raise
        try:
            await _in_thread(lambda: self._copy_and_write(snapshotter, state, request, handle))
        except asyncio.CancelledError:
            handle.abandon()
            raise
        return handle

    def restore(
        self,
        into: MutableMapping[str, Any],
        *,
        name: str | None = None,
        kind: str = "weights",
        verify: Verify = "full",
        strict: bool = True,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> RestoreReceipt:
        """Put a checkpoint back into ``into``, in place, and say what came back.

        Without ``name`` the newest one is taken; damaged ones are read twice, walked past and named in
        the receipt. Raises CheckpointMissing when there is none, RestoreMismatch with nothing changed
        when archive and target differ, DamagedArchive when none can be used, UnsupportedArchive when
        one is of a newer format, StoreError when one cannot be read now: an older one would hide it.
        """
        started = time.perf_counter()

        def attempt(found: str, agree: Callable[[str], None] | None = None) -> RestoreReceipt:
            with Archive(self.store.open(found), verify=verify) as archive:
                together = None if agree is None else lambda: agree(archive.seal)
                restored = restore_state(archive, into, strict=strict, on_bytes=on_bytes, agree=together)
                self._clock.observe(archive.manifest.created_at)
                seconds = time.perf_counter() - started
                return RestoreReceipt.of(archive, restored, name=found, url=self.store.url, seconds=seconds)

        if not self._company.meet():
            return self._walk_back(name, kind, attempt)
        self.wait()  # saves have the same peers to speak to
        return self._company.restore(lambda one: self._walk_back(name, kind, one), attempt)

    async def restore_async(self, into: MutableMapping[str, Any], **options: Any) -> RestoreReceipt:
        """As ``restore``, off the event loop."""
        return await _in_thread(_giving_way(lambda: self.restore(into, **options)))

    def load(self, *, name: str | None = None, kind: str = "weights", verify: Verify = "full") -> dict[str, Any]:
        """The state of a checkpoint as new objects: nested containers and whole tensors, in this process alone.

        Walks past damaged ones as ``restore`` does. From a directory the tensors are views of the
        file, mapped privately; see ``restore.load_state``.
        """
        walk = self._walk(name, kind)
        for found in walk:
            try:
                with Archive(self.store.open(found.name), verify=verify) as archive:
                    return load_state(archive)
            except CheckpointError as error:
                if not self._goes_on(walk, found, error):
                    raise
        raise self._none_left(kind, walk)

    async def load_async(self, **options: Any) -> dict[str, Any]:
        """As ``load``, off the event loop."""
        return await _in_thread(_giving_way(lambda: self.load(**options)))

    def verify(self, name: str) -> int:
        """Read all of a checkpoint and check every digest; how many blocks that were. Raises DamagedArchive."""
        with Archive(self.store.open(self._full_name(name, None)), verify="full") as archive:
            return verify_archive(archive)

    async def verify_async(self, name: str) -> int:
        """As ``verify``, off the event loop."""
        return await _in_thread(_giving_way(lambda: self.verify(name)))

    def export(
        self,
        name: str,
        directory: Path,
        *,
        members: Sequence[str] = (),
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> tuple[Member, ...]:
        """Files of a checkpoint, verified, in a new directory; see ``export.export_members``."""
        with Archive(self.store.open(self._full_name(name, None)), verify="full") as archive:
            return export_members(archive, directory, members=members, on_bytes=on_bytes)

    async def export_async(self, name: str, directory: Path, *, members: Sequence[str] = ()) -> tuple[Member, ...]:
        """As ``export``, off the event loop and at the checkpointer's pace. Cancelling who waits does not stop it."""
        pace = Pace(self._bytes_per_second)
        return await _in_thread(_giving_way(lambda: self.export(name, directory, members=members, on_bytes=pace.wait)))

    def checkpoints(self) -> list[StoredCheckpoint]:
        """All checkpoints below the prefix, oldest first, damaged ones included and marked."""
        return list_checkpoints(self.store, self.prefix)

    def wait(self) -> None:
        """Until every save so far has ended. Errors stay on their handles."""
        pending = self._pending()
        for handle in pending:
            handle.hurry()
        for handle in pending:
            handle._wait()

    def close(self) -> None:
        """Let running saves end; the checkpointer takes no more. Ctrl-C while waiting abandons them."""
        with self._lock:
            self._closed = True
        try:
            self.wait()
        except BaseException:
            for handle in self._pending():
                handle.abandon()
            self.wait()
            raise
        finally:
            _open_checkpointers.discard(self)
            self._company.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self._raise_unseen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(self.close)
        if error is None:
            self._raise_unseen()

    def _full_name(self, name: str | None, step: int | None) -> str:
        if name is None:
            if step is None:
                raise ValueError("a checkpoint needs a step or a name")
            name = f"step-{step:08d}"
        full = f"{self.prefix}/{name}" if self.prefix and not name.startswith(f"{self.prefix}/") else name
        check_name(full)
        return full

    def _open(self, options: SaveOptions) -> tuple[SaveRequest, SaveHandle]:
        self._refuse_closed()
        self._company.meet()
        try:
            self._raise_unseen()
            request = self._request(options)
        except BaseException as error:
            self._decline(error)
            raise
        return request, SaveHandle(request.name)

    def _request(self, options: SaveOptions) -> SaveRequest:
        step = None if options.get("step") is None else operator.index(options["step"])  # type: ignore[arg-type]  # not None
        return SaveRequest(
            name=self._full_name(options.get("name"), step),
            step=step,
            kind=options.get("kind", "weights"),
            metrics={name: float(value) for name, value in options.get("metrics", {}).items()},
            metadata=copy_metadata(options.get("metadata", {})),
            files=copy_files(options.get("files", {})),
            pinned=bool(options.get("pinned", False)),
            ttl_seconds=check_ttl(options.get("ttl_seconds")),
            overwrite=bool(options.get("overwrite", False)),
            admission=options.get("admission") or self.admission,
        )

    def _give_up(self, ticket: Future[Snapshotter], handle: SaveHandle, error: BaseException) -> None:
        self._buffers.give_up(ticket)
        handle._fail(error, seen=True)
        self._decline(error)

    def _decline(self, error: BaseException) -> None:
        """Tell other ranks, when it is this save's turn, that this one does not take part; they would wait for it."""
        if self._company.has_peers:
            turn = SaveHandle("")
            self._company.decline(error, turn=turn, previous=self._queue(turn))

    def _queue(self, handle: SaveHandle) -> SaveHandle | None:
        """Put a save behind the others; the one before it."""
        with self._lock:
            self._handles.append(handle)
            previous, self._last = self._last, handle
        return previous

    def _ticket(self) -> Future[Snapshotter]:
        """For a snapshot. Where none is free somebody now waits for those that are being written."""
        ticket = self._buffers.ticket()
        if not ticket.done():
            for handle in self._pending():
                handle.hurry()
        return ticket

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CheckpointError("this checkpointer is closed; make a new one to save")

    def _copy_and_write(
        self, snapshotter: Snapshotter, state: Mapping[str, object], request: SaveRequest, handle: SaveHandle
    ) -> None:
        writes = False
        try:
            snapshot = snapshotter.take(state, is_abandoned=handle.is_abandoned, **self._company.place())
            with self._lock:
                self._refuse_closed()
                previous = self._queue(handle)
            job = SaveJob(
                self.store,
                self.prefix,
                request,
                snapshot,
                self._clock,
                self.retention,
                handle,
                blocked_seconds=time.perf_counter() - request.started,
                is_first=not self._has_saved,
                bytes_per_second=self._bytes_per_second,
            )
            writer = threading.Thread(
                target=self._write, args=(job, snapshotter, previous), name="chockstone-save", daemon=True
            )
            writes = True
            writer.start()
        except BaseException as error:
            if writes and not isinstance(error, RuntimeError):
                handle.abandon()  # interrupted, but the writer may run, and then the buffer is its own
            else:
                self._buffers.release(snapshotter)
                handle._fail(error, seen=True)
                self._decline(error)
            raise

    def _write(self, job: SaveJob, snapshotter: Snapshotter, previous: SaveHandle | None) -> None:
        lower_priority()
        try:
            if previous is not None:
                previous._wait()
            saved = self._company.write(job)
            self._has_saved = True
        except BaseException as error:  # noqa: BLE001  # kept on the handle, and raised by the next save if nobody looks
            log.warning("checkpoint failed name=%s error=%s", job.request.name, error)
            self._buffers.release(snapshotter)
            job.handle._fail(error)
        else:
            self._buffers.release(snapshotter)
            job.handle._finish(saved)

    def _pending(self) -> list[SaveHandle]:
        with self._lock:
            return [handle for handle in self._handles if not handle.done()]

    def _raise_unseen(self) -> None:
        with self._lock:
            failed = [handle for handle in self._handles if handle._unseen_error() is not None]
            self._handles = [handle for handle in self._handles if not handle.done() or handle in failed[1:]]
        if failed:
            error = failed[0]._unseen_error()
            raise SaveFailed(f"the earlier save of {failed[0].name!r} failed: {error}") from error

    def _walk(self, name: str | None, kind: str) -> WalkBack[_Found]:
        """From the newest back, or to the one of that name only. What has no head to rank it by is passed already."""
        if name:
            return WalkBack([_Found(self._full_name(name, None), None, is_asked_for=True)])
        listed = self.checkpoints()
        unreadable = [c for c in listed if c.manifest is None]
        unreadable.sort(key=lambda c: c.is_newer, reverse=True)
        walk = WalkBack(_Found(c.name, None) for c in unreadable)
        for checkpoint, _ in zip(unreadable, walk, strict=False):
            verdict = Verdict.INCOMPATIBLE if checkpoint.is_newer else Verdict.CORRUPT
            walk.reject(verdict, checkpoint.damage or "", is_sure=True)
        if walk.blocked is not None:
            raise UnsupportedArchive(f"checkpoint {walk.blocked.candidate.name!r}: {walk.blocked.reason}")
        walk.add(_Found(c.name, c.manifest.step) for c in reversed(listed) if c.manifest and c.manifest.kind == kind)
        return walk

    def _walk_back(self, name: str | None, kind: str, attempt: Callable[[str], RestoreReceipt]) -> RestoreReceipt:
        """The receipt of the newest that can be restored."""
        walk = self._walk(name, kind)
        touched: CheckpointError | None = None  # by one that turned out to be damaged while it was read
        for found in walk:
            try:
                receipt = attempt(found.name)
            except CheckpointError as error:
                if self._goes_on(walk, found, error):
                    touched = error if getattr(error, "touched", False) else touched
                elif touched is None or isinstance(error, DamagedArchive):
                    raise
                else:
                    raise RestoreFailed(f"{_HALF_RESTORED} {touched} Then {found.name!r} failed: {error}") from error
            else:
                walk.accept(step=receipt.step)
                return replace(receipt, skipped=_skipped(walk), steps_lost=walk.steps_lost)
        if touched is not None:
            raise RestoreFailed(f"{_HALF_RESTORED} {self._none_left(kind, walk)}") from touched
        raise self._none_left(kind, walk)

    def _goes_on(self, walk: WalkBack[_Found], found: _Found, error: CheckpointError) -> bool:
        """Whether another one, or the same once more, may do instead of what failed so."""
        walk.failed(error, step=found.step)
        if walk.will_retry:
            return True
        if found.is_asked_for or walk.is_over:
            return False
        log.warning("checkpoint skipped name=%s damage=%s", found.name, error)
        return True

    def _none_left(self, kind: str, walk: WalkBack[_Found]) -> CheckpointError:
        place = f"{self.store.url}/{self.prefix}" if self.prefix else self.store.url
        if walk.ending is Ending.FRESH:
            return CheckpointMissing(f"there is no checkpoint of kind {kind!r} in {place}")
        listed = "".join(f"\n  {skip.name}: {skip.reason}" for skip in _skipped(walk))
        return DamagedArchive(f"none of the checkpoints in {place} can be used:{listed}")


def _giving_way(work: Callable[[], T]) -> Callable[[], T]:
    """What is done beside an event loop, which goes before it."""

    def run() -> T:
        lower_priority()
        return work()

    return run


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    step: int | None
    is_asked_for: bool = False  # by its name, so that no other will do


def _skipped(walk: WalkBack[_Found]) -> tuple[SkippedCandidate, ...]:
    return tuple(SkippedCandidate(look.candidate.name, look.reason) for look in walk.skipped)


def _forget_all() -> None:
    """In a forked child: its parent's saves are its parent's to finish."""
    _open_checkpointers.clear()


os.register_at_fork(after_in_child=_forget_all)
_open_checkpointers: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The end of the program waits for running saves, as leaving a ``with`` block does."""
    for checkpointer in list(_open_checkpointers):
        checkpointer.close()
