"""Failed requests: middleware that hands each answer with a status from 400 up to the failure log, with its reason.

Some are no news and are left out: polls that found nothing yet, probes of a server that is not ready, refused keys
(``refusals`` reports those), and what a handler or the engine behind an API replica has reported itself.
"""

from __future__ import annotations

import re
from typing import Final

import orjson
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chockstone.api.requests.request_facts import client_of, is_forwarded, method_of, owner_of, route_of
from chockstone.api.vendors.credentials import credentials_of
from chockstone.engine.failure_log import FailureLog, RequestFailure

_REPORTED: Final = "failure_is_reported"  # in the scope's state
_REASON: Final = "failure_reason"  # likewise
_QUIET: Final = re.compile(r"408 /api/v1/retrieve_futures?|503 /api/v1/readyz")
_LARGEST_BYTES: Final = 64 << 10  # of an answer that is read for its reason


def mark_reported(request: Request) -> None:
    """The failure of this request was reported elsewhere, or is no news."""
    setattr(request.state, _REPORTED, True)


def note_reason(request: Request, reason: str) -> None:
    """Why the request failed, for an answer that is a page and not JSON."""
    setattr(request.state, _REASON, reason)


class FailedRequests:
    def __init__(self, app: ASGIApp, *, failures: FailureLog) -> None:
        self._app = app
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer()

        async def receive_and_look() -> Message:
            message = await receive()
            answer.has_reader = answer.has_reader and message["type"] != "http.disconnect"
            return message

        async def look_and_send(message: Message) -> None:
            answer.look(message)
            await send(message)

        await self._app(scope, receive_and_look, look_and_send)
        reason = (scope.get("state", {}).get(_REASON) or answer.reason()) if answer.is_failure else ""
        if reason and not _is_quiet(scope, answer.status):
            self._failures.record(_describe(scope, answer.status, reason))


class _Answer:
    """The status of an answer and, of a failure, the first bytes of its body."""

    def __init__(self) -> None:
        self.status = 0
        self.has_reader = True  # False: the client left, and an unread upload is no failure of ours
        self._body = b""

    @property
    def is_failure(self) -> bool:
        return self.status >= 400 and self.has_reader

    def look(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status >= 400 and len(self._body) < _LARGEST_BYTES:
            self._body += message.get("body", b"")

    def reason(self) -> str:
        """The ``detail`` of the answer; empty if it has none."""
        try:
            detail = orjson.loads(self._body)["detail"]
        except (ValueError, KeyError, TypeError):
            return ""
        return detail if isinstance(detail, str) else orjson.dumps(detail).decode()


def _is_quiet(scope: Scope, status: int) -> bool:
    is_refused_key = status == 401 and bool(credentials_of(scope))
    is_reported = scope.get("state", {}).get(_REPORTED, False) or is_forwarded(scope)
    return is_refused_key or is_reported or _QUIET.fullmatch(f"{status} {scope['path']}") is not None


def _describe(scope: Scope, status: int, reason: str) -> RequestFailure:
    return RequestFailure(
        route=f"{method_of(scope)} {route_of(scope)}",
        status=status,
        reason=reason,
        owner=owner_of(scope),
        client=client_of(scope),
    )
