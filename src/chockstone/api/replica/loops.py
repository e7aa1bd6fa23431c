"""Loops: middleware that refuses requests which an API replica forwarded to itself, directly or through a proxy."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from chockstone.api.replica.engine_link import EngineLink


class RefuseLoops:
    """Must be outside of admission: identifying a caller may already ask the engine."""

    def __init__(self, app: ASGIApp, *, engine: EngineLink) -> None:
        self._app = app
        self._via = engine.via.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"via" and self._via in value for name, value in scope.get("headers", ())):
            detail = "this API replica was given itself as its engine: --engine must name another server"
            await JSONResponse({"detail": detail}, 508)(scope, receive, send)
            return
        await self._app(scope, receive, send)
