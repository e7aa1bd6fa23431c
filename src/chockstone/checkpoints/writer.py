"""The writer: streams an image into a sink from several threads, hashing on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import xxhash

from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.image import Image
from chockstone.checkpoints.manifest import DIGEST_BYTES
from chockstone.checkpoints.store import Sink

CHUNK_BYTES: Final = 32 * 1024**2
THREADS: Final = 2


class Write:
    """One archive on its way into a sink. Threads run ``work`` until it returns; ``finish`` follows."""

    def __init__(
        self, image: Image, sink: Sink, *, on_bytes: Callable[[int], None], is_abandoned: Callable[[], bool]
    ) -> None:
        self._image = image
        self._sink = sink
        self._on_bytes = on_bytes
        self._is_abandoned = is_abandoned
        self._lock = threading.Lock()
        self._next = image.layout.body_offset
        self._error: BaseException | None = None
        self._digests = bytearray(DIGEST_BYTES * image.layout.block_count)

    def work(self) -> None:
        """Hash and write chunk after chunk. Errors are kept for ``finish``."""
        try:
            while (chunk := self._take()) is not None:
                self._write(*chunk)
        except BaseException as error:  # noqa: BLE001  # recorded; finish() raises it
            with self._lock:
                self._error = self._error or error

    def finish(self) -> None:
        """Write what depends on the digests. Call once, after every ``work`` has returned."""
        if self._error is not None:
            raise self._error
        head, tail = self._image.head_and_tail(bytes(self._digests))
        self._put(self._image.tail_start, tail.data)
        self._put(0, head.data)

    def _take(self) -> tuple[int, int] | None:
        layout = self._image.layout
        with self._lock:
            if self._error is not None or self._next >= layout.body_end:
                return None
            start = self._next
            self._next = min(start + max(CHUNK_BYTES, layout.block_bytes), layout.body_end)
            return start, self._next

    def _write(self, start: int, end: int) -> None:
        layout = self._image.layout
        first = (start - layout.body_offset) // layout.block_bytes
        for index in range(first, first + -(-(end - start) // layout.block_bytes)):
            if self._is_abandoned():
                raise SaveAbandoned("the save was abandoned before its commit; nothing of it is visible")
            digest = xxhash.xxh3_128()
            for _, piece in self._image.pieces(*layout.block_range(index)):
                digest.update(piece)
            self._digests[DIGEST_BYTES * index : DIGEST_BYTES * (index + 1)] = digest.digest()
        for offset, piece in self._image.pieces(start, min(end, self._image.tail_start)):
            self._put(offset, piece)

    def _put(self, offset: int, piece: memoryview) -> None:
        self._sink.write_at(offset, piece)
        self._on_bytes(len(piece))
