"""The library: the worker's archives. Disk work runs in threads, so that computing goes on.

A training archive holds a run's whole state. A sampler's archive holds what inference engines load:
``adapter_model.safetensors`` with ``adapter_config.json``, or ``model.safetensors`` with the base
model's ``config.json``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from chockstone.backends.run import Run
from chockstone.checkpoints import Archive, Checkpointer, Saved, SaveHandle, load_state, open_store
from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

_SAVES: Final = 2  # at a time; each holds a snapshot
State = Mapping[str, Any]  # Any: tensors and plain JSON


class Library:
    """All methods but the threads' own work are for the compute thread."""

    def __init__(self, store: str, *, post: Callable[[Callable[[], None]], None]) -> None:
        self._store = open_store(store)
        self._checkpointer = Checkpointer(self._store, buffers=_SAVES)
        self._post = post
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="library")
        self._saving: dict[str, SaveHandle] = {}
        self._room = _SAVES
        self._waiting: deque[Future[None]] = deque()

    def room(self) -> Future[None]:
        """Done when a save may begin, which the caller then must."""
        future: Future[None] = Future()
        if self._room:
            self._room -= 1
            future.set_result(None)
        else:
            self._waiting.append(future)
        return future

    def save(
        self, run: Run, archive: str, *, kind: str, metadata: Mapping[str, Any], ttl_seconds: float | None
    ) -> Future[Saved]:
        """Copy the run's state; the future is done when the archive is durable. ``room`` was granted before."""
        future: Future[Saved] = Future()
        try:
            state, files = (run.state(), {}) if kind == "weights" else _sampler_parts(run)
            handle = self._checkpointer.save(
                state, name=archive, kind=kind, metadata=metadata, files=files, ttl_seconds=ttl_seconds, step=run.steps
            )
        except BaseException:
            self._make_room()
            raise
        self._saving[archive] = handle
        handle.add_done_callback(lambda ended: self._post(lambda: self._ended(archive, ended, future)))
        return future

    def load(self, archive: str) -> Future[State]:
        """The state of an archive, verified, its tensors mapped from the file."""
        return self._threads.submit(self._read, archive)

    def remove(self, archive: str) -> Future[bool]:
        """Delete the archive, once a save that is writing it has ended."""
        saving = self._saving.get(archive)

        def delete() -> bool:
            if saving is not None:
                saving.exception()
            return self._store.delete(archive)

        return self._threads.submit(delete)

    def close(self) -> None:
        """Wait for what is being written."""
        self._threads.shutdown()
        self._checkpointer.close()

    def _ended(self, archive: str, handle: SaveHandle, future: Future[Saved]) -> None:
        self._saving.pop(archive, None)
        self._make_room()
        error = handle.exception()
        if error is None:
            future.set_result(handle.result())
        else:
            future.set_exception(ServerFailure(f"the checkpoint could not be written: {error}"))

    def _make_room(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._room += 1

    def _read(self, archive: str) -> State:
        try:
            with Archive(self._store.open(archive)) as opened:
                return load_state(opened)
        except CheckpointError as error:
            raise _explain(error) from error


def _sampler_parts(run: Run) -> tuple[dict[str, Any], dict[str, bytes]]:
    described = {"run": {"spec": run.spec.to_json()}}
    if run.spec.is_full:
        config = (run.base.directory / "config.json").read_bytes()
        return described | {"model": run.state()["weights"]}, {"config.json": config}
    config, tensors = run.peft_files()
    return described | {"adapter_model": tensors}, {"adapter_config.json": config}


def _explain(error: CheckpointError) -> RequestError:
    if isinstance(error, CheckpointMissing):
        return BadRequest(f"the checkpoint is not in the store any more: {error}")
    return ServerFailure(f"the checkpoint cannot be loaded: {error}")
