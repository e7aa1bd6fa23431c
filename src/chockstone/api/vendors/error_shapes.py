"""Error shapes: middleware that gives errors on the paths of other vendors the shape that their clients read.

Admission, the proxy of an API replica and all routes answer errors as ``{"detail": …}``; the middleware rewrites these
and passes on everything else. Some status codes change: clients show 422 as another class of error than 400.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chockstone.api.vendors.paths import Vendor, vendor_of
from chockstone.telemetry.origin import current_request_id

_REQUEST_ID: Final = b"request-id"
_LARGEST_BYTES: Final = 256 << 10  # of an error that is rewritten
_STATUSES: Final = {422: 400}
_OPENAI: Final = {  # type, code
    401: ("authentication_error", "invalid_api_key"),  # with OpenAI's own type, LiteLLM would read a 400
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
_ANTHROPIC: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def error_body(
    vendor: Vendor, status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The body of an answer with this status, or the data of an error in a stream."""
    if vendor is Vendor.ANTHROPIC:
        kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": current_request_id()}
    kind, usual_code = _OPENAI.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    return {"error": {"message": message, "type": kind, "param": param, "code": code or usual_code}}


class VendorErrors:
    """Must be outside of ``FailedRequests``, which reads ``detail``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        vendor = vendor_of(scope["path"]) if scope["type"] == "http" else None
        await self._app(scope, receive, send if vendor is None else _Answer(vendor, send).send)


class _Answer:
    def __init__(self, vendor: Vendor, send: Send) -> None:
        self._vendor = vendor
        self._send = send
        self._start: Message | None = None  # held back until the body is whole
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            message = {**message, "headers": [*headers, *self._more_headers(headers)]}
            if message["status"] >= 400 and _is_json(message):
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            is_more = message.get("more_body", False)
            if is_more and len(self._body) < _LARGEST_BYTES:
                return
            await self._send_held(is_more=is_more)
            return
        await self._send(message)

    def _more_headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Anthropic's clients read the request's id from a field of another name. A forwarded answer has it already."""
        request_id = current_request_id()
        is_there = any(name.lower() == _REQUEST_ID for name, _ in headers)
        if self._vendor is not Vendor.ANTHROPIC or request_id is None or is_there:
            return []
        return [(_REQUEST_ID, request_id.encode("latin-1"))]

    async def _send_held(self, *, is_more: bool) -> None:
        start, self._start = self._start, None
        assert start is not None
        body = None if is_more else self._rewritten(start["status"])
        if body is not None:
            kept = [field for field in start["headers"] if field[0].lower() != b"content-length"]
            headers = [*kept, (b"content-length", str(len(body)).encode())]
            start = {**start, "status": _STATUSES.get(start["status"], start["status"]), "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body or self._body, "more_body": is_more})

    def _rewritten(self, status: int) -> bytes | None:
        """None: it is no error of ours, or it has the vendor's shape already."""
        try:
            found = orjson.loads(self._body)
        except ValueError:
            return None
        if not isinstance(found, dict) or "detail" not in found:
            return None
        detail = found["detail"]
        message = detail if isinstance(detail, str) else orjson.dumps(detail).decode()
        status = _STATUSES.get(status, status)
        return orjson.dumps(error_body(self._vendor, status, message, code=found.get("code"), param=found.get("param")))


def _is_json(start: Message) -> bool:
    fields = {name.lower(): value for name, value in start["headers"]}
    return fields.get(b"content-type", b"").startswith(b"application/json") and b"content-encoding" not in fields
