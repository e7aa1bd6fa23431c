"""The HTTP protocol: uvicorn's, with limits on header fields and on the time that a client may take.

The head of a request has a deadline. Its body has one while the application waits for it (``uploads``). The rest of
a body whose request is already answered has one, and is discarded. Between requests the keep-alive time runs. A
connection whose client reads nothing of a response is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

import httptools
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from chockstone.api.admission.connections import Connections
from chockstone.api.admission.limits import ConnectionLimits

log = logging.getLogger(__name__)
CONNECTION: Final = "connection"  # in the scope's state
_SLICE_BYTES: Final = 16 << 10  # parsed between two checks of the limits


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class HttpConfig(uvicorn.Config):
    """What every connection of one server shares."""

    def __init__(self, app: Any, *, limits: ConnectionLimits, **options: Any) -> None:  # Any: uvicorn's own
        super().__init__(app, http=LimitedProtocol, ws="none", timeout_keep_alive=limits.idle_seconds, **options)
        self.limits = limits
        self.open_connections = Connections(limits.connections)


def recognize_connection(scope: Scope) -> None:
    """A request had a valid credential or a valid signed URL. Does nothing without a socket, as in tests."""
    if (connection := scope.get("state", {}).get(CONNECTION)) is not None:
        connection.recognize()


class LimitedProtocol(HttpToolsProtocol):
    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],  # Any: uvicorn's own
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._open = config.open_connections
        self._deadline: asyncio.TimerHandle | None = None  # of a head, or of the rest of an answered body
        self._writing: asyncio.TimerHandle | None = None
        self._field_bytes = 0  # of the request line and header fields of one request
        self._bare_bytes = 0  # received since the parser last found the end of a head or a piece of a body
        self._is_body = False  # the head of a request is complete and its body is not
        self._is_refused = False  # further bytes are discarded

    @property
    def is_busy(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def recognize(self) -> None:
        """A request on this connection had a valid credential or a valid signed URL."""
        self._open.recognize(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._set_deadline(self._limits.head_seconds, self._head_is_late)
        self._open.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open.leave(self)
        self._unset_keepalive_if_required()
        self._clear_deadline()
        self._stop_watching()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self._set_deadline(self._limits.head_seconds, self._head_is_late)
        try:
            for start in range(0, len(data), _SLICE_BYTES):
                self._parse(data[start : start + _SLICE_BYTES])
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # the request is answered as any other; what follows it is not HTTP
            self._is_refused = True
        except httptools.HttpParserError as error:
            refused = error.__context__ if isinstance(error.__context__, _Refused) else None
            self._refuse(refused or _Refused(400, "this is not a valid HTTP request"))
        except _Refused as refused:
            self._refuse(refused)

    def _parse(self, piece: bytes) -> None:
        self._bare_bytes += len(piece)
        self.parser.feed_data(piece)
        if self._bare_bytes > self._limits.head_bytes:
            raise self._too_large()

    def _too_large(self) -> _Refused:
        return _Refused(431, f"the header fields of one request may have {self._limits.head_bytes} bytes; send less")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._field_bytes = 0
        self.scope["state"][CONNECTION] = self

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_field(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_field(len(name) + len(value) + len(": \r\n"))
        if not self._is_body:  # trailers come after the caller was identified by the header fields, and are dropped
            super().on_header(name, value)

    def _count_field(self, size: int) -> None:
        self._field_bytes += size
        if self._field_bytes > self._limits.head_bytes:
            raise self._too_large()

    def on_headers_complete(self) -> None:
        self._bare_bytes = 0
        self._is_body = True
        self._clear_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bare_bytes = 0
        self._is_body = False
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # the rest of an answered body came
            self._clear_deadline()
            self._wait_for_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_writing()
        elif self._is_body and self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self._set_deadline(self._limits.linger_seconds, self.abort)

    def _wait_for_next(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self._limits.idle_seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.abort()  # ``close`` would wait for a client that reads nothing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_watching()

    def _watch_writing(self) -> None:
        """Nothing more is written meanwhile, so the unsent bytes become fewer if the client reads any."""
        self._stop_watching()
        if unsent := self.transport.get_write_buffer_size():
            self._writing = self.loop.call_later(self._limits.write_seconds, self._look_at_writing, unsent)

    def _look_at_writing(self, unsent_before: int) -> None:
        if self.transport.get_write_buffer_size() < unsent_before:
            self._watch_writing()
        else:
            self.abort()

    def _stop_watching(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _head_is_late(self) -> None:
        if self._bare_bytes == 0:
            self.abort()  # no request had begun
        else:
            self._refuse(_Refused(408, f"the header fields did not come within {self._limits.head_seconds:g} seconds"))

    def _refuse(self, refused: _Refused) -> None:
        """Answer, unless another answer is being sent, and close after the client had time to read it."""
        log.debug("connection refused client=%s status=%d reason=%s", self.client, refused.status, refused.detail)
        self._is_refused = True
        self._unset_keepalive_if_required()
        if self.is_busy and not self._is_body:
            self.cycle.keep_alive = False  # the connection ends with the response to what came before
            return
        if self.pipeline or (self.is_busy and self.cycle.response_started):
            self.abort()
            return
        if self.is_busy:
            self.cycle.disconnected = True  # the application waits for a body that will not come
            self.cycle.message_event.set()
        body = json.dumps({"detail": refused.detail}).encode()
        fields = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[refused.status] + fields + body)
        self.transport.write_eof()
        self._set_deadline(self._limits.linger_seconds, self.abort)

    def _set_deadline(self, seconds: float, act: Callable[[], None]) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, act)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
