"""The console's app: its pages, behind the gate, with security headers on every answer."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Final

from fastapi import APIRouter, FastAPI, HTTPException, Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from chockstone.api.admission.browser import PREFIX
from chockstone.api.context import Context
from chockstone.api.tokenizers.tokenizer_service import TokenizerService
from chockstone.api.users import Caller
from chockstone.console import errors
from chockstone.console.gate import Gate, SecurityHeaders, base_path
from chockstone.console.live import Live
from chockstone.console.pages import (
    audit,
    checkpoints,
    compare,
    doctor,
    overview,
    playground,
    run,
    runs,
    samplers,
    sign_in,
    storage,
    users,
)
from chockstone.console.playground.sampling import PlaygroundSampling
from chockstone.console.session import BrowserSessions
from chockstone.console.static_files import static_files
from chockstone.console.views import Views

# Modules with ``routes``, whose paths are below ``/console``
PAGES: Final = (sign_in, overview, runs, run, compare, checkpoints, storage, playground, samplers, users, audit, doctor)


@cache
def _shared_routes() -> tuple[BaseRoute, ...]:
    """The routes of every console in this process. FastAPI analyses them once."""
    shared = APIRouter()
    for routes in (*(page.routes for page in PAGES), static_files().routes()):
        shared.include_router(routes, prefix=PREFIX)
    return tuple(shared.routes)


class Console:
    """The ``BrowserPages`` of the API."""

    def __init__(self, context: Context, secret: bytes) -> None:
        public_url = context.config.public_url
        sessions = BrowserSessions(
            secret, context.users, cookie_path=base_path(public_url), now=lambda: datetime.now(UTC)
        )
        self._gate = Gate(sessions, public_url=public_url)
        static = static_files()
        self._views = Views(context, self._gate, static)
        app = FastAPI(openapi_url=None, redirect_slashes=False)
        app.state.context = context
        app.state.views = self._views
        app.state.sessions = sessions
        app.state.tokenizers = TokenizerService()
        app.state.playground = PlaygroundSampling(context)
        app.state.live = Live(context, self._gate)
        app.router.routes.extend(_shared_routes())
        errors.install(app, self._views)
        self.app: ASGIApp = SecurityHeaders(app)

    def admit(self, scope: Scope) -> Caller | None:
        return self._gate.admit(scope)

    def refusal(self, error: HTTPException) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = self._gate.send_to_sign_in(scope) if error.status_code == 401 else None
            if response is None:
                request = Request(scope, receive)
                response = await errors.failure(self._views, request, error.status_code, str(error.detail))
            await response(scope, receive, send)

        return SecurityHeaders(answer)


def make_console(context: Context, secret: bytes) -> Console:
    """``secret``: signs the cookies, as it signs the server's tokens."""
    return Console(context, secret)
