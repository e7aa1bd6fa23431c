"""The checkpointer: saves in the background after one memory copy, and restores with a receipt.

    with Checkpointer("file:///checkpoints", prefix="run-1") as checkpointer:
        handle = checkpointer.save({"model": model, "optimizer": optimizer}, step=100)
        ...                                   # training continues while the archive is written
        handle.result()                       # durable

Memory: at most ``buffers`` snapshots, one by default, reused by the next save. A save that finds all of them in
use waits for its turn, in the order of the calls.

Where torch.distributed has several ranks they save one archive together. Each rank copies and writes its shards of
DTensors and Pieces, and an equal share of tensors that all ranks have. Values that are no tensors come from rank 0.
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
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack, overload

from chockstone.checkpoints.errors import CheckpointError, InvalidName, SaveFailed
from chockstone.checkpoints.format.layout import Member
from chockstone.checkpoints.format.tree import flatten
from chockstone.checkpoints.ranks.coordinator import RankCoordinator
from chockstone.checkpoints.reading.archive import Archive, Verify
from chockstone.checkpoints.reading.listing import StoredCheckpoint, is_set_aside, list_checkpoints
from chockstone.checkpoints.reading.reader import verify_archive
from chockstone.checkpoints.restoring.export import export_members
from chockstone.checkpoints.restoring.receipt import RestoreReceipt
from chockstone.checkpoints.restoring.restore import load_state, restore_state
from chockstone.checkpoints.restoring.search import CheckpointSearch
from chockstone.checkpoints.retention.policy import Retention
from chockstone.checkpoints.runtime.threads import in_thread as _in_thread
from chockstone.checkpoints.runtime.threads import lower_priority
from chockstone.checkpoints.saving.admission import Admission
from chockstone.checkpoints.saving.buffers import Buffers
from chockstone.checkpoints.saving.clock import Clock
from chockstone.checkpoints.saving.copy_progress import CopyFailed
from chockstone.checkpoints.saving.handle import SaveHandle
from chockstone.checkpoints.saving.job import SaveJob
from chockstone.checkpoints.saving.pace import Pace
from chockstone.checkpoints.saving.request import SaveOptions, SaveRequest, make_request
from chockstone.checkpoints.saving.snapshot import SnapshotCopy, Snapshotter
from chockstone.checkpoints.stores.store import Store, check_name, open_store

log = logging.getLogger(__name__)
T = TypeVar("T")
_FOLLOWED_BYTES: Final = 16 * 1024**2  # a smaller state is copied in a few milliseconds, which a writer cannot use


class Checkpointer:
    """Saves to and restores from one prefix of one store. May be used from several threads.

    Leaving ``with`` or ``async with`` waits for running saves. Under torch.distributed, all ranks together save and
    restore one archive: each rank calls the same methods in the same order.
    """

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
        """``store``: a directory, or the URL of an object store. ``prefix``: the folder of this run in the store.

        ``buffers``: how many saves may be under way at once; each takes host memory of the size of the state.
        ``bytes_per_second``: rate limit of writes while no caller waits for the save; None: no limit.

        ``scan_store``: the first save removes what killed processes left, and reads the head of every archive below the
        prefix, so that its own timestamp is the newest. False is for callers that do both themselves.

        ``ranks="off"``: this process saves and restores alone, whatever torch.distributed says. A rank that sends
        nothing for ``rank_timeout_seconds`` counts as lost; how long reads and writes take does not matter.
        """
        if prefix:
            check_name(prefix)
        if bytes_per_second is not None and not 0 < bytes_per_second < math.inf:
            raise ValueError(f"bytes_per_second={bytes_per_second!r}: give a positive number, or None for no limit")
        self._coordinator = RankCoordinator(ranks=ranks, timeout_seconds=rank_timeout_seconds)
        self.store = open_store(store)
        self.prefix = prefix
        self.retention = retention
        self.admission = admission or Admission()
        self._bytes_per_second = bytes_per_second or math.inf
        self._clock = Clock(now)
        self._buffers = Buffers(buffers)
        self._lock = threading.RLock()
        self._handles: list[SaveHandle] = []  # saves are written one after the other, in this order
        self._closed = False
        self._has_saved = not scan_store
        self._skipped: set[str] = set()  # by restores and loads, as damaged: a save may take their names
        _open_checkpointers.add(self)

    def save(self, state: Mapping[str, object], **options: Unpack[SaveOptions]) -> SaveHandle:
        """Copy ``state`` and write it in the background; returns when it may be changed again.

        ``options`` are the fields of ``SaveOptions``: ``save(state, step=100, metrics={"loss": 0.5})``. The checkpoint
        is durable when the handle's ``result`` returns. A state holds tensors, arrays, plain values, nested containers
        and objects with ``state_dict``; another object raises UnstorableValue, which names its path.

        Raises SaveFailed when an earlier save failed and no caller has seen its error.
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

        Cancelling the awaiting task abandons the save: it never becomes visible, unless it was committed already.
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

    @overload
    def restore(
        self,
        into: MutableMapping[str, Any],
        *,
        name: str,
        kind: str = ...,
        verify: Verify = ...,
        strict: bool = ...,
        on_bytes: Callable[[int], None] = ...,
    ) -> RestoreReceipt: ...
    @overload
    def restore(
        self,
        into: MutableMapping[str, Any],
        *,
        name: str | None = None,
        kind: str = ...,
        verify: Verify = ...,
        strict: bool = ...,
        on_bytes: Callable[[int], None] = ...,
    ) -> RestoreReceipt | None: ...
    def restore(
        self,
        into: MutableMapping[str, Any],
        *,
        name: str | None = None,
        kind: str = "weights",
        verify: Verify = "full",
        strict: bool = True,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> RestoreReceipt | None:
        """Restore a checkpoint into ``into``, in place, and return a receipt.

        Without ``name`` the newest one is restored; damaged ones are read twice, skipped and named in
        the receipt. Returns None, with nothing changed, if there is no checkpoint: a first start.

        Raises CheckpointMissing when there is none of that ``name`` or all are of other kinds, RestoreMismatch with
        nothing changed when archive and target differ, DamagedArchive when none can be used, UnsupportedArchive when
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

        if not self._coordinator.connect():
            return self._search(name, kind).restore(attempt)
        self.wait()  # saves and restores use the same connection to the other ranks
        return self._coordinator.restore(lambda one: self._search(name, kind).restore(one), attempt)

    async def restore_async(self, into: MutableMapping[str, Any], **options: Any) -> RestoreReceipt | None:
        """As ``restore``, off the event loop."""
        return await _in_thread(_at_low_priority(lambda: self.restore(into, **options)))

    def load(self, *, name: str | None = None, kind: str = "weights", verify: Verify = "full") -> dict[str, Any]:
        """The state of a checkpoint as new objects: nested containers and whole tensors, in this process alone.

        Skips damaged ones as ``restore`` does. From a directory the tensors are views of the
        file, mapped privately; see ``load_state``.
        """

        def attempt(found: str) -> dict[str, Any]:
            with Archive(self.store.open(found), verify=verify) as archive:
                return load_state(archive)

        return self._search(name, kind).load(attempt)

    async def load_async(self, **options: Any) -> dict[str, Any]:
        """As ``load``, off the event loop."""
        return await _in_thread(_at_low_priority(lambda: self.load(**options)))

    def verify(self, name: str) -> int:
        """Read all of a checkpoint and check every digest; how many blocks that were. Raises DamagedArchive."""
        with Archive(self.store.open(self._full_name(name, None)), verify="full") as archive:
            return verify_archive(archive)

    async def verify_async(self, name: str) -> int:
        """As ``verify``, off the event loop."""
        return await _in_thread(_at_low_priority(lambda: self.verify(name)))

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
        """As ``export``, off the event loop and at the checkpointer's pace. Cancelling the task does not stop it."""
        pace = Pace(self._bytes_per_second)
        return await _in_thread(
            _at_low_priority(lambda: self.export(name, directory, members=members, on_bytes=pace.wait))
        )

    def checkpoints(self) -> list[StoredCheckpoint]:
        """All checkpoints below the prefix, oldest first, damaged ones included and marked."""
        return list_checkpoints(self.store, self.prefix)

    def wait(self) -> None:
        """Wait until every save so far has ended. Errors stay on their handles.

        In a signal handler it does not wait for the ``save`` that the handler interrupts.
        """
        pending = self._pending()
        for handle in pending:
            handle.hurry()
        for handle in pending:
            handle._wait()

    def close(self) -> None:
        """Wait for running saves; the checkpointer accepts no further ones. Ctrl-C while waiting abandons them.

        In a signal handler it abandons the ``save`` that the handler interrupts.
        """
        try:
            with self._lock:
                self._closed = True
                for handle in self._handles:
                    if handle._caller == threading.get_ident():
                        handle.abandon()
            self.wait()
        except BaseException:
            self._closed = True
            for handle in self._pending():
                handle.abandon()
            self.wait()
            raise
        finally:
            _open_checkpointers.discard(self)
            self._coordinator.close()

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

    def _search(self, name: str | None, kind: str) -> CheckpointSearch:
        full = name and self._full_name(name, None)
        return CheckpointSearch(self.store, self.prefix, kind=kind, name=full, on_skipped=self._skipped.add)

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
        self._coordinator.connect()
        try:
            self._raise_unseen()
            step = options.get("step")
            name = self._full_name(options.get("name"), None if step is None else operator.index(step))
            if is_set_aside(name):
                raise InvalidName(f"checkpoint {name!r}: names that end in .damaged-NUMBER are for archives set aside")
            request = make_request(options, name=name, admission=options.get("admission") or self.admission)
        except BaseException as error:
            self._decline(error)
            raise
        return request, SaveHandle(request.name)

    def _give_up(self, ticket: Future[Snapshotter], handle: SaveHandle, error: BaseException) -> None:
        self._buffers.give_up(ticket)
        handle._fail(error, seen=True)
        self._decline(error)

    def _decline(self, error: BaseException) -> None:
        """When it is this save's turn, tell the other ranks that this one does not take part, so that none waits."""
        if self._coordinator.has_peers:
            turn = SaveHandle("")
            self._coordinator.decline(error, turn=turn, previous=self._queue(turn))

    def _queue(self, handle: SaveHandle) -> list[SaveHandle]:
        """Queue a save, in a signal handler before the save that the handler interrupts; returns those before it."""
        with self._lock:
            previous = self._pending()
            self._handles.insert(self._count_reachable(), handle)
        return previous

    def _ticket(self) -> Future[Snapshotter]:
        """Request a snapshot buffer. Where none is free, lift the rate limit of the saves that hold them."""
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
        """The writer follows the copy of a large state. Among ranks it begins after the copy, when this rank can
        promise its part."""
        copy: SnapshotCopy | None = None
        owner = threading.Lock()  # of the buffer: the writer takes it when it begins, or this call if it fails before
        try:
            copy = snapshotter.begin(flatten(state), **self._coordinator.rank_arguments())
            is_followed = not self._coordinator.has_peers and copy.snapshot.tensor_bytes >= _FOLLOWED_BYTES
            if not is_followed:
                copy.run(handle.is_abandoned)
            job = SaveJob(
                self.store,
                self.prefix,
                request,
                copy.snapshot,
                self._clock,
                self.retention,
                handle,
                is_first=not self._has_saved,
                was_skipped=request.name in self._skipped,
                bytes_per_second=self._bytes_per_second,
            )
            with self._lock:
                self._refuse_closed()
                if not self._coordinator.has_peers:
                    handle._caller = threading.get_ident()
                previous = self._queue(handle)
            writer = threading.Thread(
                target=copy_context().run,  # the writer's log lines say as much as the caller's
                args=(self._write, job, snapshotter, previous, owner),
                name="chockstone-save",
                daemon=True,
            )
            writer.start()
            if is_followed:
                copy.run(handle.is_abandoned)
        except BaseException as error:
            if owner.acquire(blocking=False):
                self._buffers.release(snapshotter)
                handle._fail(error, seen=True)
                self._decline(error)
            else:
                assert copy is not None
                handle.abandon()
                copy.snapshot.progress.fail(error)
            raise
        finally:
            handle._caller = None

    def _write(
        self, job: SaveJob, snapshotter: Snapshotter, previous: Sequence[SaveHandle], owner: threading.Lock
    ) -> None:
        if not owner.acquire(blocking=False):
            return  # the caller was interrupted, and has ended the save
        try:
            for handle in previous:
                handle._wait()
            saved = self._coordinator.write(job)
            self._has_saved = True
        except CopyFailed as failed:
            self._buffers.release(snapshotter)
            job.handle._fail(failed.error, seen=True)  # by the caller of ``save``
        except BaseException as error:  # noqa: BLE001  # kept on the handle; the next save raises it if unseen
            log.warning("checkpoint failed name=%s error=%s", job.request.name, error)
            job.snapshot.progress.wait_until_ended()  # the buffer is not free before
            self._buffers.release(snapshotter)
            job.handle._fail(error)
        else:
            self._buffers.release(snapshotter)
            job.handle._finish(saved)

    def _pending(self) -> list[SaveHandle]:
        """Saves that have not ended, of those that a caller may wait for."""
        with self._lock:
            return [handle for handle in self._handles[: self._count_reachable()] if not handle.done()]

    def _count_reachable(self) -> int:
        """How many saves a caller may wait for: in a signal handler those before the save that it interrupts, which
        cannot continue before the handler returns."""
        caller = threading.get_ident()
        interrupted = (index for index, handle in enumerate(self._handles) if handle._caller == caller)
        return next(interrupted, len(self._handles))

    def _raise_unseen(self) -> None:
        with self._lock:
            failed = [handle for handle in self._handles if handle._unseen_error() is not None]
            self._handles = [handle for handle in self._handles if not handle.done() or handle in failed[1:]]
        if failed:
            error = failed[0]._unseen_error()
            raise SaveFailed(f"the earlier save of {failed[0].name!r} failed: {error}") from error


def _at_low_priority(work: Callable[[], T]) -> Callable[[], T]:
    """``work`` at low priority, for a thread beside an event loop."""

    def run() -> T:
        lower_priority()
        return work()

    return run


def _forget_all() -> None:
    """In a forked child: only the parent finishes its saves."""
    _open_checkpointers.clear()


os.register_at_fork(after_in_child=_forget_all)
_open_checkpointers: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The end of the program waits for running saves, as leaving a ``with`` block does."""
    for checkpointer in list(_open_checkpointers):
        checkpointer.close()
