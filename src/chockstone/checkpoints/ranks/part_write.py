"""Part writes: one rank's part of an archive, written in threads, so that the caller can exchange bytes meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.ranks.ownership import ROUND_BYTES, Chunk, tail_start
from chockstone.checkpoints.ranks.share import FileExtent, RankShare, Received, cut_extents
from chockstone.checkpoints.saving.pace import Pace
from chockstone.checkpoints.saving.writer import hash_blocks

FILE_THREADS: Final = 4  # small pieces between those of other ranks wait for the disk more than for a core
_WAITING_BYTES: Final = 4 * ROUND_BYTES  # that were exchanged and are not being written yet


class PartTarget(Protocol):
    """Where the bytes go: the sink of rank 0, or the shared sink of another rank."""

    def write_at(self, offset: int, data: memoryview) -> None: ...


class PartWrite:
    """Call ``start``, ``offer`` for each assembled chunk, ``end_offers``, then ``wait``. ``stop`` ends it early."""

    def __init__(
        self,
        share: RankShare,
        layout: Layout,
        chunks: Iterable[Chunk],
        target: PartTarget,
        *,
        finish: Callable[[], str],
        on_bytes: Callable[[int], None],
        is_abandoned: Callable[[], bool],
        pace: Pace,
        threads: int = FILE_THREADS,
    ) -> None:
        """``chunks``: those of which no other rank has bytes. ``finish`` is called once all bytes are written."""
        self._wanted_threads = threads
        self._share = share
        self._layout = layout
        self._target = target
        self._finish = finish
        self._on_bytes = on_bytes
        self._is_abandoned = is_abandoned
        self._pace = pace
        self._pure = deque(chunks)
        self._offered: deque[tuple[Chunk, Sequence[FileExtent]]] = deque()
        self._has_all = False
        self._change = threading.Condition()
        self._working = 0
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()
        self.error: BaseException | None = None
        self.digests: dict[int, bytes] = {}  # by block
        self.remainder = b""  # of the body, from the page it ends in, where that is this rank's
        self.receipt = ""

    def start(self) -> None:
        self._working = self._wanted_threads
        for started in range(self._wanted_threads):
            thread = threading.Thread(target=self._work, name="chockstone-part", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending and starts no more: without any, ``wait`` does the work
                for _ in range(self._wanted_threads - max(started, 1)):
                    self._leave()
                return
            self._threads.append(thread)

    def offer(self, chunk: Chunk, received: Sequence[Received]) -> None:
        """Queue a chunk with the bytes that other ranks sent, which are copied. Blocks while the queue is full."""
        try:
            extents = self._share.extents(chunk, received)
        except BaseException as error:  # noqa: BLE001  # recorded; ``wait`` ends and the caller reads ``error``
            self.fail(error)
            return
        with self._change:
            while self._threads and self._waiting_bytes() >= _WAITING_BYTES and self.error is None:
                self._change.wait()
            if self.error is None:
                self._offered.append((chunk, extents))
                self._change.notify_all()

    def end_offers(self) -> None:
        with self._change:
            self._has_all = True
            self._change.notify_all()

    def wait(self, seconds: float) -> bool:
        """Whether the part has ended within ``seconds``: finished, or failed with ``error``."""
        if not self._threads and not self._done.is_set():
            self._work()
        return self._done.wait(seconds)

    def stop(self) -> None:
        """End early. Nothing is written after this returns."""
        self.fail(SaveAbandoned("the save was given up before its commit; nothing of it is visible"))
        for thread in self._threads:
            thread.join()

    def fail(self, error: BaseException) -> None:
        with self._change:
            self.error = self.error or error
            self._change.notify_all()

    def _work(self) -> None:
        try:
            while (item := self._take()) is not None:
                self._write(*item)
        except BaseException as error:  # noqa: BLE001  # recorded; ``wait`` ends and the caller reads ``error``
            self.fail(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        """The last thread to end finishes the part."""
        with self._change:
            self._working -= 1
            if self._working:
                return
        try:
            if self.error is None and self._has_all:
                self.receipt = self._finish()
        except BaseException as error:  # noqa: BLE001  # recorded; ``wait`` ends and the caller reads ``error``
            self.fail(error)
        self._done.set()

    def _waiting_bytes(self) -> int:
        return sum(chunk.needed_to - chunk.start for chunk, _ in self._offered)

    def _take(self) -> tuple[Chunk, Sequence[FileExtent] | None] | None:
        with self._change:
            while self.error is None:
                if self._offered:
                    self._change.notify_all()
                    return self._offered.popleft()
                if self._pure:
                    return self._pure.popleft(), None
                if self._has_all:
                    return None
                self._change.wait()
            return None

    def _write(self, chunk: Chunk, offered: Sequence[FileExtent] | None) -> None:
        self._pace.wait(chunk.end - chunk.start)
        extents = self._share.extents(chunk) if offered is None else offered
        if chunk.blocks:
            first = self._layout.block_range(chunk.blocks.start)[0]
            blocks = (content for _, content in cut_extents(extents, first, chunk.needed_to))
            for index, digest in zip(chunk.blocks, hash_blocks(blocks, self._layout.block_bytes), strict=True):
                if self._is_abandoned():
                    raise SaveAbandoned("the save was abandoned before its commit; nothing of it is visible")
                self.digests[index] = digest
        tail = tail_start(self._layout)
        for offset, content in cut_extents(extents, chunk.start, min(chunk.end, tail)):
            self._target.write_at(offset, content)
            self._on_bytes(len(content))
        if chunk.end == self._layout.body_end:
            self.remainder = b"".join(content for _, content in cut_extents(extents, tail, chunk.end))
        self._share.release(extents)
