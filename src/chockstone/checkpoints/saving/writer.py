"""The writer: streams an image into a sink from several threads, hashing on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import xxhash

from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.manifest import DIGEST_BYTES
from chockstone.checkpoints.saving.pace import Pace
from chockstone.checkpoints.stores.store import Sink

CHUNK_BYTES: Final = 32 * 1024**2  # that a thread takes at once
THREADS: Final = 2
_STEP_BYTES: Final = 8 * 1024**2  # that a thread hashes and writes at once: one hashes while another waits for the disk


class WrittenImage(Protocol):
    """An archive as bytes to write: all but head and tail, which need the digests of the rest."""

    layout: Layout
    tail_start: int  # a page; from here on the bytes wait for COMMIT

    def pieces(self, start: int, end: int) -> Iterable[tuple[int, memoryview]]:
        """(offset, bytes) pairs that together are the body from ``start`` to ``end``.

        They begin on pages, and end on pages before ``tail_start``. Asked for once; they stay as they are
        until the same thread asks for more.
        """

    def head_and_tail(self, digests: bytes) -> tuple[Bytes, Bytes]:
        """The bytes before the body, and those from ``tail_start`` to the end of the file."""


class Write:
    """One archive on its way into a sink: ``run``, then ``finish``."""

    def __init__(
        self,
        image: WrittenImage,
        sink: Sink,
        *,
        on_bytes: Callable[[int], None],
        is_abandoned: Callable[[], bool],
        pace: Pace | None = None,
    ) -> None:
        self._image = image
        self._sink = sink
        self._on_bytes = on_bytes
        self._is_abandoned = is_abandoned
        self._pace = pace or Pace()
        block_bytes = image.layout.block_bytes
        self._chunk_bytes = max(self._pace.step_bytes(CHUNK_BYTES) // block_bytes, 1) * block_bytes
        self._step_bytes = max(_STEP_BYTES // block_bytes, 1) * block_bytes
        self._lock = threading.Lock()
        self._next = image.layout.body_offset
        self._error: BaseException | None = None
        self._digests = bytearray(DIGEST_BYTES * image.layout.block_count)

    def run(self) -> None:
        """Hash and write the body, in this thread and others. Errors are kept for ``finish``."""
        helpers = [threading.Thread(target=self._work, args=(False,), daemon=True) for _ in range(THREADS - 1)]
        with suppress(RuntimeError):  # the interpreter is ending and starts no more threads
            for helper in helpers:
                helper.start()
        self._work(True)
        started = [helper for helper in helpers if helper.ident is not None]
        try:
            _join(started)
        except BaseException as error:  # Ctrl-C: the sink may be closed only when no thread writes to it
            self._fail(error)
            _join(started)
            raise

    def finish(self) -> None:
        """Write what depends on the digests. Call once, after ``run``."""
        if self._error is not None:
            raise self._error
        head, tail = self._image.head_and_tail(bytes(self._digests))
        self._put(self._image.tail_start, tail.data)
        self._put(0, head.data)

    def _work(self, hashes_first: bool) -> None:
        """Hash and write chunk after chunk. Of two threads, one writes first, so that the disk is never idle."""
        try:
            while (chunk := self._take()) is not None:
                self._pace.wait(chunk[1] - chunk[0])
                for start in range(*chunk, self._step_bytes):
                    self._write(start, min(start + self._step_bytes, chunk[1]), hashes_first=hashes_first)
        except BaseException as error:  # noqa: BLE001  # recorded; finish() raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error

    def _take(self) -> tuple[int, int] | None:
        layout = self._image.layout
        with self._lock:
            if self._error is not None or self._next >= layout.body_end:
                return None
            start = self._next
            self._next = min(start + self._chunk_bytes, layout.body_end)
            return start, self._next

    def _write(self, start: int, end: int, *, hashes_first: bool) -> None:
        """Hash and write a part of a chunk. Both use the same bytes: the image is asked for them once."""
        pieces = list(self._image.pieces(start, end))
        if hashes_first:
            self._hash(start, pieces)
        for offset, piece in pieces:
            if offset < self._image.tail_start:
                self._put(offset, piece[: self._image.tail_start - offset])
        if not hashes_first:
            self._hash(start, pieces)

    def _hash(self, start: int, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """The digests of the blocks from ``start`` on, which is where one begins."""
        layout = self._image.layout
        first = (start - layout.body_offset) // layout.block_bytes
        for index, digest in enumerate(hash_blocks((piece for _, piece in pieces), layout.block_bytes), start=first):
            self._keep(index, digest)

    def _keep(self, index: int, digest: bytes) -> None:
        if self._is_abandoned():
            raise SaveAbandoned("the save was abandoned before its commit; nothing of it is visible")
        self._digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)] = digest

    def _put(self, offset: int, piece: memoryview) -> None:
        self._sink.write_at(offset, piece)
        self._on_bytes(len(piece))


def hash_blocks(pieces: Iterable[memoryview], block_bytes: int) -> Iterator[bytes]:
    """The digest of each block of these bytes; the last may be shorter."""
    missing = block_bytes
    digest = xxhash.xxh3_128()
    for piece in pieces:
        while len(piece):
            part = piece[:missing]
            digest.update(part)
            piece = piece[len(part) :]
            missing -= len(part)
            if not missing:
                yield digest.digest()
                missing = block_bytes
                digest = xxhash.xxh3_128()
    if missing < block_bytes:
        yield digest.digest()


def _join(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
