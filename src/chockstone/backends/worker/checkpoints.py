"""The worker's checkpoints: saves and loads archives. Disk work and encryption run in threads beside computing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

from chockstone.backends.export.encryption import encrypt_files
from chockstone.backends.export.load_errors import explain_load
from chockstone.backends.training.base_model import RestoreTemplate
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.parts import COMPLETE, Parts, collect_parts
from chockstone.checkpoints import (
    Admission,
    Archive,
    Checkpointer,
    SavedCheckpoint,
    SaveHandle,
    SaveOptions,
    Store,
    load_state,
    open_store,
    verify_archive,
)
from chockstone.checkpoints.errors import (
    AdmissionRefused,
    CheckpointError,
    CheckpointMissing,
    RanksLost,
    StoreError,
    StoreFull,
)
from chockstone.checkpoints.restoring.restore import restore_state
from chockstone.checkpoints.saving.snapshot import Snapshot, Snapshotter
from chockstone.checkpoints.stores.bucket import RetryPolicy
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

_SAVES: Final = 2  # at the same time; each holds a copy of the state
_OUTAGE_SECONDS: Final = 300.0
State = Mapping[str, Any]  # Any: tensors and plain JSON


class WorkerCheckpoints:
    """All public methods are for the compute thread."""

    def __init__(
        self, store: str, *, post: Callable[[Callable[[], None]], None], process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        """The processes of a group write each archive together; only its leader verifies and deletes archives."""
        self._process_group = process_group
        self._store = _open_with_retries(store)
        # The server has a catalog, so there is no need to list a store of perhaps a hundred thousand archives.
        self._checkpointer = Checkpointer(self._store, buffers=_SAVES, scan_store=False)
        self._post = post
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="checkpoints")
        self._encryptors = ThreadPoolExecutor(max_workers=_SAVES, thread_name_prefix="encryption")
        self._saving: dict[str, Future[SavedCheckpoint]] = {}  # completed by the writing threads
        self._room = _SAVES
        self._waiting: deque[Future[None]] = deque()

    def room(self) -> Future[None]:
        """Done when a save may begin. The caller must then call ``save``."""
        future: Future[None] = Future()
        if self._room:
            self._room -= 1
            future.set_result(None)
        else:
            self._waiting.append(future)
        return future

    def save(
        self,
        run: TrainedRun,
        archive: str,
        *,
        kind: str,
        metadata: Mapping[str, Any],
        ttl_seconds: float | None,
        recipients: Sequence[Any] = (),  # Any: as parse_recipients gives them
        admission: Admission | None = None,
    ) -> Future[SavedCheckpoint]:
        """Copy the state before returning. The future is done when the archive is durable. Call after ``room``.

        An archive of that name is replaced: names are unique, so it is from an earlier attempt at the same save.
        """
        options = SaveOptions(
            name=archive,
            kind=kind,
            metadata=metadata,
            ttl_seconds=ttl_seconds,
            step=run.steps,
            overwrite=True,
            admission=admission,
        )
        try:
            if recipients and self._process_group.size > 1:
                raise BadRequest(
                    "several workers write one archive together and cannot encrypt it; export it without recipients "
                    "and encrypt what you download"
                )
            parts = collect_parts(run, kind)
            writing = self._begin_encrypted(parts, recipients, options) if recipients else self._write(parts, options)
        except BaseException:
            self._make_room()
            raise
        self._saving[archive] = writing
        future: Future[SavedCheckpoint] = Future()
        writing.add_done_callback(lambda ended: self._post(lambda: self._ended(archive, ended, future)))
        return future

    def load(
        self, archive: str, restore_template: RestoreTemplate | None = None, *, seal: str | None = None
    ) -> Future[State]:
        """Read and verify the state of an archive; its tensors are mapped from the file.

        With a ``restore_template`` only the parts for which it has room are read and verified. With a ``seal`` any
        other archive is "damaged".
        """
        return self._threads.submit(copy_context().run, self._read, archive, restore_template, seal)

    def is_whole(self, archive: str) -> Future[bool]:
        """Whether the archive is in the store and undamaged. The leader answers; a follower gets False."""
        if self._process_group.rank:
            return _known(False)
        if isinstance(self._store, FileStore):  # a bucket would take a request, which must not block the compute thread
            try:
                self._store.stat(archive)
            except CheckpointMissing:  # nearly always: answered without a thread
                return _known(False)
        return self._threads.submit(copy_context().run, self._verify, archive)

    def written(self, archive: str) -> Future[None]:
        """Done when no save is writing the archive any more, whether it succeeded or not."""
        ended: Future[None] = Future()
        saving = self._saving.get(archive)
        if saving is None:
            ended.set_result(None)
        else:
            saving.add_done_callback(lambda _: ended.set_result(None))
        return ended

    def remove(self, archive: str) -> Future[bool]:
        """Delete the archive, after a save that is writing it has ended."""
        if self._process_group.rank:
            return _known(False)
        saving = self._saving.get(archive)

        def delete() -> bool:
            if saving is not None:
                saving.exception()
            try:
                return self._store.delete(archive)
            except StoreError as error:
                raise ServerFailure(f"an archive could not be deleted: {error}") from error

        return self._threads.submit(copy_context().run, delete)

    def close(self) -> None:
        """Wait for saves in progress."""
        self._threads.shutdown()
        self._encryptors.shutdown()
        self._checkpointer.close()

    def _begin_encrypted(
        self, parts: Parts, recipients: Sequence[Any], options: SaveOptions
    ) -> Future[SavedCheckpoint]:
        snapshot = Snapshotter().take({name: part for name, part in parts.state.items() if name != "run"})
        files = {name: content for name, content in parts.files.items() if name != COMPLETE}  # which is empty
        described = {"run": parts.state["run"], "encrypted": True}
        return self._encryptors.submit(self._write_encrypted, [snapshot], files, recipients, described, options)

    def _write_encrypted(
        self,
        snapshots: list[Snapshot],
        files: Mapping[str, bytes],
        recipients: Sequence[Any],
        described: dict[str, Any],
        options: SaveOptions,
    ) -> SavedCheckpoint:
        """Runs in a thread. Empties the list, so that the plain copy is freed before the encrypted one is written."""
        encrypted = encrypt_files(snapshots.pop(), files, recipients)
        return self._write(Parts(described, {**encrypted, COMPLETE: b""}), options).result()

    def _write(self, parts: Parts, options: SaveOptions) -> Future[SavedCheckpoint]:
        given: SaveOptions = {**options, "files": parts.files}
        return _future_of(self._checkpointer.save(parts.state, **given))

    def _ended(self, archive: str, writing: Future[SavedCheckpoint], future: Future[SavedCheckpoint]) -> None:
        self._saving.pop(archive, None)
        self._make_room()
        error = writing.exception()
        if isinstance(error, RanksLost):
            self._process_group.abort(error)
        if error is None:
            future.set_result(writing.result())
        elif isinstance(error, RequestError):
            future.set_exception(error)
        else:
            future.set_exception(ServerFailure(f"the checkpoint could not be written: {error}"))

    def _make_room(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._room += 1

    def _verify(self, archive: str) -> bool:
        try:
            with Archive(self._store.open(archive)) as opened:
                verify_archive(opened)
        except CheckpointError:
            return False
        return True

    def _read(self, archive: str, restore_template: RestoreTemplate | None, seal: str | None) -> State:
        try:
            with Archive(self._store.open(archive), seal=seal) as opened:
                if restore_template is None:
                    return load_state(opened)
                state = restore_template(opened)
                restore_state(opened, state, agree=lambda: None)  # the caller does that with the process group
                return state
        except CheckpointError as error:
            raise explain_load(error) from error


def _open_with_retries(url: str) -> Store:
    """Open the store. A bucket that is unreachable for minutes delays a save and does not fail it."""
    if url.startswith("s3://"):
        return ObjectStore.from_url(url, retry_policy=RetryPolicy(outage_seconds=_OUTAGE_SECONDS))
    return open_store(url)


def _known(answer: bool) -> Future[bool]:
    known: Future[bool] = Future()
    known.set_result(answer)
    return known


def _future_of(handle: SaveHandle) -> Future[SavedCheckpoint]:
    """The outcome of the save. A save that fails for lack of space is a BadRequest."""
    future: Future[SavedCheckpoint] = Future()

    def end(ended: SaveHandle) -> None:
        error = ended.exception()
        if error is None:
            future.set_result(ended.result())
        else:
            future.set_exception(_explain_save(error, needed_bytes=ended.progress.bytes_total))

    handle.add_done_callback(end)
    return future


def _explain_save(error: BaseException, *, needed_bytes: int) -> BaseException:
    if isinstance(error, AdmissionRefused):
        return BadRequest(str(error), code="no_room", needed_bytes=error.needed_bytes)
    if isinstance(error, StoreFull):
        return BadRequest(
            f"the checkpoint needs {needed_bytes} bytes, and there is no room: {error}",
            code="no_room",
            needed_bytes=needed_bytes,
        )
    return error
