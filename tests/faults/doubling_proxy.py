"""A proxy that delivers every request twice, as a network may that loses answers.

The second delivery goes out together with the first, or once the first was answered, by a seeded draw;
so does whose answer the client gets. Connections serve one request each.
"""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

_LONGEST_HEAD: Final = 1 << 20


class DoublingProxy:
    """In a thread of its own while it is entered; ``url`` is where it listens."""

    def __init__(self, target: str, *, seed: int) -> None:
        self._target = urlsplit(target)
        self._randomness = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.requests = 0
        self.url = ""

    def __enter__(self) -> DoublingProxy:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LONGEST_HEAD))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work):  # type: ignore[no-untyped-def]  # a coroutine of any result
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _end(self) -> None:
        self._server.close()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            request = await self._read_request(reader)
            self.requests += 1
            writer.write(await self._deliver_twice(request))
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _read_request(self, reader: asyncio.StreamReader) -> bytes:
        lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get(b"content-length", 0)))
        kept = [line for line in lines if not line.lower().startswith(b"connection:")]
        return b"\r\n".join([*kept, b"connection: close", b"", body])

    async def _deliver_twice(self, request: bytes) -> bytes:
        is_together, wants_first = self._randomness.random() < 0.5, self._randomness.random() < 0.5
        if is_together:
            answers = list(await asyncio.gather(self._deliver(request), self._deliver(request)))
        else:
            answers = [await self._deliver(request), await self._deliver(request)]
        return answers[0 if wants_first else 1]

    async def _deliver(self, request: bytes) -> bytes:
        assert self._target.hostname is not None and self._target.port is not None
        reader, writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()
