"""Request metrics: middleware that counts each HTTP request by route template and status, and times its answer.

The label is the template of the route, never the path: a client cannot make up a label value.
"""

from __future__ import annotations

import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chockstone.telemetry.instruments import Instruments

NO_ROUTE: Final = "(none)"  # refused before its route was looked up, or there is no such route
FORWARDED: Final = "(forwarded)"  # to an app that is mounted here: the engine of an API replica, static files
_PREFIX: Final = "/api/v1"  # some versions of FastAPI leave it out of the template
_WRONG_METHOD: Final = 405  # counted without its route: a client could make a series of each method and route
_NO_ANSWER: Final = 499  # the client left before there was one, as proxies count it


class RequestMetrics:
    def __init__(self, app: ASGIApp, *, instruments: Instruments) -> None:
        self._app = app
        self._instruments = instruments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, seconds = _NO_ANSWER, None
        started = time.perf_counter()

        async def look_and_send(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], time.perf_counter() - started
            await send(message)

        self._instruments.http_begins()
        try:
            await self._app(scope, receive, look_and_send)
        except Exception:
            if seconds is None:  # the app around this one answers
                status, seconds = 500, time.perf_counter() - started
            raise
        finally:
            route = NO_ROUTE if status == _WRONG_METHOD else route_of(scope)
            self._instruments.http_ended(method=scope["method"], route=route, status=status, seconds=seconds)


def route_of(scope: Scope) -> str:
    """The template of the route that took the request, relative to ``/api/v1``; or a fixed word."""
    path = getattr(scope.get("route"), "path", None)
    if path is not None:
        return str(path).removeprefix(_PREFIX)
    return FORWARDED if "endpoint" in scope else NO_ROUTE
