"""Errors: maps exceptions to HTTP answers. ``failed_requests`` logs them.

Clients retry 408, 409, 429 and 5xx for minutes. So a mistake of the caller is another 4xx, always with a JSON body:
clients retry an empty 400, too.
"""

from __future__ import annotations

import logging
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from chockstone.api.chat.chat_service import PromptTooLong
from chockstone.api.chat.served_model import ModelMissing
from chockstone.api.context import Context, RunGone
from chockstone.api.requests.failed_requests import mark_reported
from chockstone.api.vendors.error_shapes import error_body
from chockstone.api.vendors.paths import vendor_of
from chockstone.catalog.errors import CatalogAway, CatalogUnavailable, RowExists, RowMissing, UnstorableColumnValue
from chockstone.checkpoints.errors import CheckpointError
from chockstone.engine.config import Busy
from chockstone.engine.journal.writer import Stalled
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.messages.futures import AcceptedResponse
from chockstone.wire.messages.schema import explain

log = logging.getLogger(__name__)
_CODES: Final = {ModelMissing: "model_not_found", PromptTooLong: "context_length_exceeded"}  # OpenAI's
_OUR_RULES: Final = frozenset({"value_error", "extra_forbidden"})  # 400; other validation errors are 422


def install(app: FastAPI) -> None:
    @app.exception_handler(BadRequest)
    @app.exception_handler(UnstorableColumnValue)
    @app.exception_handler(RowExists)
    async def bad_request(_: Request, error: Exception) -> JSONResponse:
        return _answer(error, 400)

    @app.exception_handler(RunGone)
    async def gone(request: Request, error: RunGone) -> Response:
        context: Context = request.app.state.context
        accepted = AcceptedResponse(request_id=context.engine.refuse(error.owner, error), model_id=error.run_id)
        return Response(accepted.encode(), media_type="application/json")

    @app.exception_handler(RowMissing)
    async def missing(_: Request, error: RowMissing) -> JSONResponse:
        return _answer(error, 404)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 429, {"Retry-After": "1"})

    @app.exception_handler(Stalled)
    async def stalled(_: Request, error: Stalled) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "5"})

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        is_our_rule = any(found["type"] in _OUR_RULES for found in errors)
        return JSONResponse({"detail": explain(errors)}, 400 if is_our_rule else 422)

    @app.exception_handler(ServerFailure)
    @app.exception_handler(CatalogUnavailable)
    @app.exception_handler(CheckpointError)  # a failing disk; damaged archives are a BadRequest
    async def unavailable(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "2"})

    @app.exception_handler(CatalogAway)
    async def away(request: Request, error: CatalogAway) -> JSONResponse:
        mark_reported(request)  # ``follow_keys`` warns of the outage
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "2"})

    @app.exception_handler(ClientDisconnect)
    async def left(request: Request, error: ClientDisconnect) -> Response:
        log.info("client disconnected during its request path=%s", _path(request))
        return Response(status_code=400)  # the client is gone

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.exception("request failed path=%s", _path(request), exc_info=error)
        message = "the server failed on this request; its log says why"
        vendor = vendor_of(request.url.path)  # no middleware sees this answer
        return JSONResponse({"detail": message} if vendor is None else error_body(vendor, 500, message), 500)


def _path(request: Request) -> str:
    """The path for the log, without the token of a signed URL."""
    path = request.url.path
    token = request.path_params.get("token")
    return path if token is None else path.replace(token, "…")


def _answer(error: Exception, status_code: int) -> JSONResponse:
    """With the error's code and parameter, if it has these, for programs that act on them."""
    facts = {"code": _CODES.get(type(error)) or getattr(error, "code", None), "param": getattr(error, "param", None)}
    return JSONResponse(
        {"detail": str(error)} | {name: fact for name, fact in facts.items() if fact is not None}, status_code
    )
