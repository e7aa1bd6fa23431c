"""The HTTP server that each serving process runs: uvicorn with our limits, our signals and a prompt shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from chockstone.api.admission.limits import ConnectionLimits
from chockstone.api.admission.protocol import HttpConfig
from chockstone.checkpoints import tune_for_latency


class HttpServer(uvicorn.Server):
    """Leaves signals to ``stop_on_signals``, and closes every connection when it shuts down."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # one whose client reads nothing would stay open
        await asyncio.sleep(0)


def get_ready(app: FastAPI) -> None:
    """Do once, before the first request, what that request would wait for: a tenth of a second and more."""
    nowhere = {"type": "http", "method": "GET", "path": "/nowhere", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)  # FastAPI joins routers at the first match
    tune_for_latency(collect=False)  # there is little garbage yet, and a client waits


def http_server(app: ASGIApp) -> HttpServer:
    return HttpServer(http_config(app, ConnectionLimits()))


def http_config(app: ASGIApp, limits: ConnectionLimits) -> HttpConfig:
    return HttpConfig(
        app, limits=limits, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=3
    )


async def start_serving(server: HttpServer, sock: socket.socket) -> asyncio.Task[None]:
    """The task that serves ``sock``. On return the server answers, or the task has failed."""
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    return serving


def stop_on_signals(stop: asyncio.Event, *, at_once: Callable[[], None]) -> None:
    """The first SIGINT or SIGTERM sets ``stop``; the next one calls ``at_once`` and ends the process."""

    def handle() -> None:
        if stop.is_set():
            at_once()
            os._exit(130)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle)


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
