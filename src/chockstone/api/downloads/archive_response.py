"""Archive response: streams a range of a stored archive to the client, straight from the file.

Bytes in the page cache are copied on the event loop, which takes less time than changing threads. Other bytes
are read in threads of this file's own pool, so that a slow disk does not stall the loop. A client that reads
slowly holds no thread and little memory. The response ends when a client reads nothing for some minutes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from fastapi import Response
from starlette.types import Receive, Scope, Send

from chockstone.api.downloads.byte_ranges import ByteRange
from chockstone.checkpoints import Archive
from chockstone.checkpoints.errors import CheckpointError, TruncatedArchive
from chockstone.checkpoints.stores.posix import explained

log = logging.getLogger(__name__)
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_BRISK_BYTES: Final = 1 << 20  # at a time, to a client that keeps up
_SLOW_BYTES: Final = 64 << 10
_BRISK_SECONDS: Final = 0.25  # a client that takes longer for one piece does not keep up
_STALL_SECONDS: Final = 300.0  # without a byte taken: the client may keep a deleted file on the disk
_THREADS = ThreadPoolExecutor(4, "archive-read")


class ArchiveResponse(Response):
    """Takes over ``archive``, and closes it when the response ends, however it ends."""

    def __init__(
        self,
        archive: Archive,
        piece: ByteRange,
        *,
        status_code: int,
        headers: Mapping[str, str],
        stall_seconds: float = _STALL_SECONDS,
    ) -> None:
        super().__init__(None, status_code, {**headers, "Content-Length": str(piece.size)})
        self._archive = archive
        self._piece = piece
        self._stall_seconds = stall_seconds
        self._reading: Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] == "HEAD" or self._piece.size == 0:
                await send({"type": "http.response.body"})
            else:
                await self._send_body(send, gone)
        except TimeoutError:
            log.info("download ended: the client read nothing stall_seconds=%g", self._stall_seconds)
        except CheckpointError as error:
            log.error("download failed error=%s", error)  # the client sees that bytes are missing
        finally:
            gone.cancel()
            self._close()
            await asyncio.gather(gone, return_exceptions=True)

    async def _send_body(self, send: Send, gone: asyncio.Task[None]) -> None:
        position, end = self._piece.start, self._piece.start + self._piece.size
        piece_bytes = _SLOW_BYTES
        ahead = memoryview(b"")  # read, and not sent yet
        loop = asyncio.get_running_loop()
        while position < end:
            if not ahead:
                ahead = memoryview(await self._read(position, min(self._read_bytes(piece_bytes), end - position)))
            if gone.done():
                return
            body, ahead = ahead[:piece_bytes], ahead[piece_bytes:]
            position += len(body)
            began = loop.time()
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": position < end})
            piece_bytes = _BRISK_BYTES if loop.time() - began < _BRISK_SECONDS else _SLOW_BYTES

    def _read_bytes(self, piece_bytes: int) -> int:
        """Bytes to read at a time. In a bucket each read is a request, so it reads a whole run of blocks."""
        return piece_bytes if self._archive.descriptor() is not None else max(piece_bytes, self._archive.run_bytes)

    async def _read(self, offset: int, size: int) -> bytearray:
        """A new buffer each time: the transport may keep it for a while."""
        body = bytearray(size)
        rest = memoryview(body)
        descriptor = self._archive.descriptor()
        rest = rest[_read_cached(descriptor, rest, offset) :]
        if len(rest) == 0:
            await asyncio.sleep(0)  # lets other tasks run
            return body
        self._reading = _THREADS.submit(_fill, self._archive, descriptor, rest, offset + size - len(rest))
        await asyncio.wrap_future(self._reading)
        return body

    def _close(self) -> None:
        """In a thread: closing a deleted file for the last time waits until its space is freed."""
        if self._reading is None:
            _THREADS.submit(self._archive.close)
        else:
            self._reading.add_done_callback(lambda _: _THREADS.submit(self._archive.close))


def _read_cached(descriptor: int | None, target: memoryview, offset: int) -> int:
    """Fill what can be filled without waiting for a disk; how much that was."""
    if descriptor is None or not _NOWAIT:
        return 0
    try:
        return os.preadv(descriptor, [target], offset, _NOWAIT)
    except OSError:  # nothing is cached, or this file system does not support the flag
        return 0


def _fill(archive: Archive, descriptor: int | None, target: memoryview, offset: int) -> None:
    if descriptor is None:
        archive.read_into(offset, target)
        return
    with explained("cannot read the archive"):
        while len(target):
            count = os.preadv(descriptor, [target], offset)  # through the page cache, which reads ahead
            if count == 0:
                raise TruncatedArchive("the archive ends while it is being sent", where=offset)
            target = target[count:]
            offset += count


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
