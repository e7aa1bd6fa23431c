"""Further API processes of a live server, and something that spreads connections over them."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from faults.crashes import RestartedServer
from support.live import SERVER_PYTHON, LiveServer

if TYPE_CHECKING:
    from chockstone.checkpoints import Store


class LiveReplica(RestartedServer):
    """``chockstone serve --engine`` before a server that runs, started again whenever it dies."""

    def __init__(self, engine: LiveServer, home: Path, *flags: str) -> None:
        super().__init__({}, home, *flags, is_executed=False)
        self._engine = engine
        self._own_flags = flags
        self.key = engine.key
        self.place = engine.place
        self.database = engine.database or f"sqlite:///{engine.data}/catalog.sqlite3"

    def command(self) -> list[str]:
        command = [SERVER_PYTHON, "-m", "chockstone.cli", "serve", f"--port={self._port}"]
        return [*command, f"--engine={self._engine.url}", *self._own_flags]

    @property
    def store(self) -> Store:
        return self._engine.store


class Balancer:
    """Passes each connection to the next server that takes it. In a thread of its own while it is entered."""

    def __init__(self, servers: Sequence[LiveServer]) -> None:
        self._servers = itertools.cycle(servers)
        self._count = len(servers)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Balancer:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for server in itertools.islice(self._servers, self._count):
            place = urlsplit(server.url)
            with suppress(OSError):
                beyond, onwards = await asyncio.open_connection(place.hostname, place.port)
                break
        else:
            writer.close()
            return
        ways = [asyncio.create_task(_flow(reader, onwards)), asyncio.create_task(_flow(beyond, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*ways, onwards, writer):
                each.cancel() if isinstance(each, asyncio.Task) else each.close()


async def _flow(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(1 << 16):
            target.write(piece)
            await target.drain()
