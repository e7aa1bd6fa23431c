"""Errors of the console: a page for a person, JSON with the reason for a script of the page.

The page's script shows the reason of a failed change or part as a message, and keeps the page.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from chockstone.api.requests.failed_requests import note_reason
from chockstone.catalog.errors import CatalogAway, CatalogUnavailable, RowExists, RowMissing, UnstorableColumnValue
from chockstone.checkpoints.errors import CheckpointError
from chockstone.console.gate import header_values, wants_page
from chockstone.console.views import Views
from chockstone.engine.config import Busy
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.messages.schema import explain

log = logging.getLogger(__name__)
_TITLES = {
    400: "That did not work",
    401: "Sign in first",
    403: "Not allowed",
    404: "Nothing is here",
    422: "That did not work",
    429: "The server is busy",
    503: "Not available at the moment",
}
_STATUS: dict[type[Exception], int] = {
    BadRequest: 400,
    UnstorableColumnValue: 400,
    RowExists: 400,
    RowMissing: 404,
    Busy: 429,
    ServerFailure: 503,
    CatalogUnavailable: 503,
    CatalogAway: 503,
    CheckpointError: 503,
}


def install(app: FastAPI, views: Views) -> None:
    def handle(kind: type[Exception], status: int) -> None:
        @app.exception_handler(kind)
        async def answer(request: Request, error: Exception) -> Response:
            return await failure(views, request, status, str(error))

    for kind, status in _STATUS.items():
        handle(kind, status)

    @app.exception_handler(AnyHTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        detail = "there is no such page" if error.detail == "Not Found" else str(error.detail)
        return await failure(views, request, error.status_code, detail)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return await failure(views, request, 400, explain(error.errors()))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("console request failed path=%s", request.url.path, exc_info=error)
        return await failure(views, request, 500, "the server failed on this request; its log says why")


async def failure(views: Views, request: Request, status: int, detail: str) -> Response:
    if not wants_page(request.scope) or header_values(request.scope, b"hx-request"):
        return JSONResponse({"detail": detail}, status)
    note_reason(request, detail)
    title = _TITLES.get(status, "Something failed" if status >= 500 else "That did not work")
    return await views.page(request, "error", status_code=status, status=status, title=title, detail=detail)
