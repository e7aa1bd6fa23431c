"""HTTP servers on loopback: on the test's own event loop, or in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

import uvicorn

from chockstone.api.serving.http_server import HttpServer, start_serving
from chockstone.api.serving.startup import bind

T = TypeVar("T")
_WAIT_SECONDS = 60.0


@asynccontextmanager
async def serving(config: uvicorn.Config, *, port: int = 0, waits_for_requests: bool = False) -> AsyncIterator[int]:
    """Serves from entering to leaving; yields the port. Requests under way are cut off, unless it waits for them."""
    with bind("127.0.0.1", port) as sock:
        server = HttpServer(config)
        task = await start_serving(server, sock)
        yield sock.getsockname()[1]
        server.should_exit = True
        server.force_exit = not waits_for_requests
        await task


class ServerThread(Generic[T]):
    """Holds an asynchronous context open in a thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        context: Callable[[], AbstractAsyncContextManager[T]],
        *,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._context = context
        self._loop_factory = loop_factory
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def __enter__(self) -> T:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> T:
        self._thread.start()
        assert self._ready.wait(_WAIT_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self._value

    def stop(self) -> None:
        """May be called again."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_WAIT_SECONDS)
        assert not self._thread.is_alive(), "the server does not stop"
        if self._failure is not None:
            raise self._failure

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it where the server runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_SECONDS)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._hold())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _hold(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._context() as self._value:
            self._ready.set()
            await self._stop.wait()
