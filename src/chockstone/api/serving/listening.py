"""Listening: an HTTP server that ends when it is told to, as every process that answers is one."""

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
    """Signals are ours: the first one lets running work end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # else one whose client takes nothing stays open until it does
        await asyncio.sleep(0)


def get_ready(app: FastAPI) -> None:
    """Once, before the first request, which would wait for all of this: a tenth of a second and more."""
    nowhere = {"type": "http", "method": "GET", "path": "/nowhere", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)  # FastAPI puts routers together when it first looks into them
    tune_for_latency(collect=False)  # there is little garbage yet, and somebody waits for the server


def http_server(app: ASGIApp) -> HttpServer:
    return HttpServer(http_config(app, ConnectionLimits()))


def http_config(app: ASGIApp, limits: ConnectionLimits) -> HttpConfig:
    return HttpConfig(
        app, limits=limits, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=3
    )


def stop_on_signals(stop: asyncio.Event, *, at_once: Callable[[], None]) -> None:
    """The first one sets ``stop``; the next calls ``at_once`` and ends the process."""

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
