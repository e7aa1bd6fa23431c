"""The server: one process that answers, a worker that computes, and a way to stop both.

The API answers as soon as the socket is bound; the worker loads torch and the models behind it, and
requests that need it wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import uvicorn

from chockstone.api.app import create_app
from chockstone.api.config import ServerConfig
from chockstone.api.context import Context
from chockstone.api.models_served import describe_models
from chockstone.api.preparing import CannotStart, Prepared
from chockstone.api.signing import Signer
from chockstone.api.users import Users, follow_keys, read_secret
from chockstone.backends.local import LocalBackend
from chockstone.catalog import Catalog, CatalogError
from chockstone.checkpoints import open_store
from chockstone.engine.engine import Engine
from chockstone.engine.storage import Storage

log = logging.getLogger(__name__)
_LAST_ANSWERS_SECONDS: Final = 3.0  # for clients to fetch what was finished last


def run(config: ServerConfig, prepared: Prepared, *, announce: Callable[[int], None]) -> int:
    """Serve until a signal says stop; ``announce`` is called with the port once it answers. Returns the exit code.

    Raises CannotStart.
    """
    with asyncio.Runner(loop_factory=_event_loop()) as runner:
        return runner.run(_serve(config, prepared, announce))


async def _serve(config: ServerConfig, prepared: Prepared, announce: Callable[[int], None]) -> int:
    sock = prepared.sock
    try:
        models = describe_models(config.models)
        secret = read_secret(config.data / "token-secret")
        catalog = await Catalog.open(config.database_url)
    except (CatalogError, OSError, ValueError) as error:
        raise CannotStart(str(error)) from error
    stop = asyncio.Event()
    failures: list[str] = []

    def fail(reason: str) -> None:
        failures.append(reason)
        stop.set()

    def lost(reason: str) -> None:
        engine.worker_lost(reason)

    backend = LocalBackend(
        prepared.worker_config, on_lost=lost, on_hopeless=fail, inherit=[prepared.lock], first=prepared.worker
    )
    storage = Storage(open_store(config.store_url))
    engine = Engine(
        backend,
        catalog,
        storage,
        data=config.data,
        durability=config.durability,
        limits=config.limits,
        rules=config.storage,
    )
    users = Users(config.keys, secret=secret, now=lambda: datetime.now(UTC))
    context = Context(config, engine, users, models, signer=Signer(secret))
    watchdog = context.loop_health.watchdog()
    watchdog.start(asyncio.get_running_loop())
    app = create_app(context)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=3,
        )
    )
    users.reload(await catalog.keys.list())  # before the first request, which must not find the door open
    await engine.start()
    following = asyncio.create_task(follow_keys(users, catalog))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    _on_signals(stop, backend)
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    announce(sock.getsockname()[1])
    await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: what is running is finished, nothing new is taken; once more stops at once")
    await engine.stop()
    await engine.futures.collected(_LAST_ANSWERS_SECONDS)
    context.polls.end()
    server.should_exit = True
    await serving
    following.cancel()
    await asyncio.to_thread(storage.close)
    await catalog.close()
    watchdog.stop()
    for reason in failures:
        log.error("the worker cannot start: %s", reason)
    return 1 if failures else 0


class _Server(uvicorn.Server):
    """Signals are ours: the first one lets running work end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # else one whose client takes nothing stays open until it does
        await asyncio.sleep(0)


def _on_signals(stop: asyncio.Event, backend: LocalBackend) -> None:
    def handle() -> None:
        if stop.is_set():
            backend.kill()
            os._exit(130)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)


def _event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
