"""S3 sinks: archives uploaded in parts, by the process that began the upload and by others that joined it.

A part is uploaded whole by one process, so what several write is divided between parts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from chockstone.checkpoints.errors import StoreError
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.s3_upload import S3Upload, part_bytes
from chockstone.checkpoints.stores.shared_writes import (
    PartReceipt,
    PartWritten,
    Ticket,
    incomplete,
    too_long,
    written_twice,
)


@dataclass(slots=True)
class _Part:
    content: bytearray
    missing: int


class _Parts:
    """Gathers writes into parts and uploads each from the thread that completes it.

    In memory are the parts being uploaded, one for each thread, and those with a gap: two for each
    thread that writes a contiguous stretch, and two for the head and the tail.
    """

    def __init__(self, upload: S3Upload, size: int) -> None:
        self._upload = upload
        self._size = size
        self._part_bytes = part_bytes(size)
        self._open: dict[int, _Part] = {}
        self._lock = threading.Lock()

    def write_at(self, offset: int, data: memoryview) -> None:
        if offset + len(data) > self._size:
            raise too_long(self._upload.place, self._size)
        while len(data):
            index, start = divmod(offset, self._part_bytes)
            piece = data[: self._part_bytes - start]
            if (full := self._fill(index, start, piece)) is not None:
                self._upload.add(index, full)
            data = data[len(piece) :]
            offset += len(piece)

    def _fill(self, index: int, start: int, piece: memoryview) -> bytearray | None:
        """Copy a piece into its part; returns the part if that completed it."""
        with self._lock:
            if index not in self._open:
                one = self.planned(index)
                length = one.end - one.start
                self._open[index] = _Part(bytearray(length), missing=length)
            part = self._open[index]
        part.content[start : start + len(piece)] = piece
        with self._lock:
            part.missing -= len(piece)
            if part.missing:
                return None
            self._open.pop(index, None)  # an abort may have been quicker
        return part.content

    def planned(self, index: int) -> PartWritten:
        """Where part ``index`` begins and ends, and its etag once it is uploaded."""
        start = index * self._part_bytes
        return PartWritten(start, min(start + self._part_bytes, self._size), self._upload.etags.get(index, ""))

    def index_of(self, start: int) -> int:
        return start // self._part_bytes

    def uploaded(self) -> list[PartWritten]:
        return [self.planned(index) for index in sorted(self._upload.etags)]

    def open_bytes(self) -> int:
        """How many bytes are missing in the parts that were begun here."""
        with self._lock:
            return sum(part.missing for part in self._open.values())

    def missing(self) -> int:
        return self._size - sum(one.end - one.start for one in self.uploaded())

    def clear(self) -> None:
        self._open.clear()


class MultipartSink:
    """An archive that this process began, and commits or aborts."""

    def __init__(self, s3: S3Connection, key: str, size: int, *, under_way: set[str]) -> None:
        self._size = size
        self._upload = S3Upload.begin(s3, key, under_way=under_way)
        self._parts = _Parts(self._upload, size)

    def write_at(self, offset: int, data: memoryview) -> None:
        self._parts.write_at(offset, data)

    def share(self) -> str:
        return Ticket(self._upload.place, self._size, self._upload.upload_id).encode()

    def settle(self, receipts: Sequence[str]) -> None:
        place = self._upload.place
        for text in receipts:
            receipt = PartReceipt.decode(text, archive=place, size=self._size, place=self._upload.upload_id)
            for one in receipt.ranges:
                index = self._parts.index_of(one.start)
                planned = self._parts.planned(index)
                if (one.start, one.end) != (planned.start, planned.end) or not one.etag:
                    raise StoreError(
                        f"cannot commit {place}: a receipt names its bytes {one.start} to {one.end}, which are no part"
                    )
                if planned.etag:
                    raise written_twice(place, one.start, one.end)
                self._upload.etags[index] = one.etag

    def commit(self, *, overwrite: bool) -> None:
        if missing := self._parts.missing():
            raise incomplete(self._upload.place, missing)
        self._upload.complete(overwrite=overwrite)

    def abort(self) -> None:
        self._parts.clear()
        self._upload.abort()


class SharedUpload:
    """A part of an archive that another process began."""

    def __init__(self, s3: S3Connection, key: str, size: int, ticket: str) -> None:
        place = Ticket.decode(ticket, archive=f"{s3.url}/{key}", size=size).place
        if not (place and place.isascii() and place.isprintable()):
            raise StoreError(f"cannot join the writing of {s3.url}/{key}: {place[:300]!r} is no upload")
        self._upload = S3Upload.join(s3, key, place)
        self._parts = _Parts(self._upload, size)
        self._is_over = False

    def write_at(self, offset: int, data: memoryview) -> None:
        if self._is_over:
            raise StoreError(f"cannot write {self._upload.place}: this process has finished its part of it")
        self._parts.write_at(offset, data)

    def finish(self) -> str:
        if missing := self._parts.open_bytes():
            raise StoreError(
                f"cannot write {self._upload.place}: {missing} bytes of parts that it began it did not write"
            )
        self.close()
        return PartReceipt(self._upload.upload_id, self._parts.uploaded()).encode()

    def close(self) -> None:
        self._is_over = True
        self._parts.clear()
