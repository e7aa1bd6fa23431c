"""The request context: middleware that gives each request its id and its trace, and logs a line when it has ended.

The id is in the answer as ``X-Request-ID``, and in every log line that is written meanwhile. At the level DEBUG each
request is one line; ``failed_requests`` reports the failed ones at WARNING.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chockstone.api.requests.request_facts import client_of, fields_of, method_of, owner_of, route_of
from chockstone.telemetry import tracing
from chockstone.telemetry.origin import accept_request_id, working_for

log = logging.getLogger(__name__)
REQUEST_ID: Final = b"x-request-id"
TRACEPARENT: Final = b"traceparent"
_UNTRACED: Final = re.compile(r"/metrics|/api/v1/(healthz|readyz|session_heartbeat)")  # asked for again and again
_POLLS: Final = re.compile(r"/api/v1/retrieve_futures?")  # one or more for each operation
_NO_ANSWER: Final = 499  # the client left before there was one, as in the metrics


class RequestContext:
    """Must be the outermost middleware: the lines of all others have the id, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = accept_request_id(fields_of(scope, REQUEST_ID))
        answer = _Answer(send, request_id)
        with working_for(request_id), _span(scope, request_id) as span:
            try:
                await self._app(scope, receive, answer.send)
            finally:
                answer.end(scope, span)


class _Answer:
    """Adds the id to the answer, and reports the answer when it has ended."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._field = (REQUEST_ID, request_id.encode("latin-1"))
        self._started = time.perf_counter()
        self._status = 0  # 0: there is no answer yet
        self._bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            others = [field for field in message.get("headers", ()) if field[0].lower() != REQUEST_ID]
            message = {**message, "headers": [*others, self._field]}
        else:
            self._bytes += len(message.get("body", b""))
        await self._send(message)

    def end(self, scope: Scope, span: tracing.Span) -> None:
        route = f"{method_of(scope)} {route_of(scope)}"
        span.rename(route)
        span.set(owner=owner_of(scope), **{"http.route": route_of(scope)})
        span.set(**{"http.response.status_code": self._status})
        if self._status >= 500 or not self._status:
            span.fail(str(self._status or "the request ended without an answer"))
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "request finished route=%r status=%d seconds=%.4f bytes=%d owner=%s client=%s",
                *(route, self._status or _NO_ANSWER, time.perf_counter() - self._started),
                *(self._bytes, owner_of(scope), client_of(scope)),
            )


def _span(scope: Scope, request_id: str) -> tracing.Span:
    if _UNTRACED.fullmatch(scope["path"]):
        return tracing.NO_SPAN
    traceparents = fields_of(scope, TRACEPARENT)
    traceparent = tracing.accept_traceparent(traceparents[0]) if len(traceparents) == 1 else None
    if traceparent is None and _POLLS.fullmatch(scope["path"]):
        return tracing.NO_SPAN
    return tracing.begin_request(
        method_of(scope),
        traceparent=traceparent,
        **{"http.request.method": method_of(scope), "x_request_id": request_id},
    )
