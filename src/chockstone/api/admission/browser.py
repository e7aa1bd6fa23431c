"""Browser pages: the seam to the web console, whose pages identify their user by a cookie and not by an API key.

The API does not know the console. The command line makes the console and passes it to the server.
"""

from __future__ import annotations

from typing import Final, Protocol

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from chockstone.api.users import Caller

PREFIX: Final = "/console"  # of the paths of all browser pages


class BrowserPages(Protocol):
    """Pages below ``PREFIX``. They accept no API key, and no other path accepts their cookie."""

    @property
    def app(self) -> ASGIApp:
        """Answers admitted requests."""
        ...

    def admit(self, scope: Scope) -> Caller | None:
        """The signed-in user; None on a page that needs none. Reads header fields only.

        Raises HTTPException: 401 without a valid cookie, 403 for a change that another site may have sent.
        """
        ...

    def refusal(self, error: HTTPException) -> ASGIApp:
        """Answers a request that was not admitted."""
        ...


class ForwardedPages:
    """The console of an API replica: the engine's server identifies the user, so every request is forwarded."""

    @property
    def app(self) -> ASGIApp:
        raise NotImplementedError("an API replica forwards the console's requests")

    def admit(self, _scope: Scope) -> None:
        return None

    def refusal(self, error: HTTPException) -> ASGIApp:
        return json_refusal(error)


class PagesRoute(BaseRoute):
    """Hands every path below ``PREFIX`` to the console, the prefix itself included."""

    def __init__(self, pages: BrowserPages) -> None:
        self._pages = pages

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_http = scope["type"] == "http"
        return (Match.FULL if is_http and is_page(scope["path"]) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pages.app(scope, receive, send)


def is_page(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def json_refusal(error: HTTPException) -> Response:
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
