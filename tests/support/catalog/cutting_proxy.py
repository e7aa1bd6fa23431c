"""A way to PostgreSQL that is cut at the worst moment: a commit gets through, and its answer does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class CuttingProxy:
    url: str  # of the database, through here
    cuts: int = 0  # commits that have yet to lose their answers
    done: int = 0  # that have


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[CuttingProxy]:
    parts = urlsplit(url)
    assert parts.port is not None
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]  # within a task there is one
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        is_cut = False

        async def answers() -> None:
            while data := await there.read(1 << 16):
                if is_cut:
                    break  # the server has answered: it is done there
                writer.write(data)
            writer.close()

        answering = asyncio.create_task(answers())
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if b"COMMIT" in data and proxy.cuts:
                    proxy.cuts, proxy.done, is_cut = proxy.cuts - 1, proxy.done + 1, True
                back.write(data)
        back.close()
        answering.cancel()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = CuttingProxy(url.replace(f":{parts.port}/", f":{port}/") + "?sslmode=disable")
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
