"""The proxy: forwards a request to the engine unchanged, and streams the answer back.

Bodies are streamed with back-pressure, so little of them is in memory. Hop-by-hop header fields are not
forwarded. When the client disconnects, the forwarded request is cancelled. When the engine is gone, the client
gets a 503, which it retries; an answer that has begun is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from typing import Final

import aiohttp
from fastapi import HTTPException
from starlette.types import Receive, Scope, Send

from chockstone.api.replica.engine_link import EngineAway, EngineLink
from chockstone.api.requests.request_facts import mark_forwarded
from chockstone.telemetry.origin import RequestOrigin

log = logging.getLogger(__name__)
Headers = Iterable[tuple[bytes, bytes]]  # names in lower case

STALL_SECONDS: Final = 300.0  # for a client that neither sends nor reads
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_SET_BY_REPLICA: Final = frozenset({b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-request-id"})
_SET_BY_SERVER: Final = frozenset({b"date", b"server"})


class EngineProxy:
    """An ASGI app."""

    def __init__(self, engine: EngineLink, *, stall_seconds: float = STALL_SECONDS) -> None:
        self._engine = engine
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        self._refuse(scope)
        body = _Body(receive, scope["headers"], self._stall_seconds)
        forwarding = asyncio.create_task(self._forward(scope, body, send))
        disconnect = asyncio.create_task(body.client_left())
        try:
            await asyncio.wait((forwarding, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if forwarding.done():
                forwarding.result()
        finally:
            forwarding.cancel()
            disconnect.cancel()
            await asyncio.gather(forwarding, disconnect, return_exceptions=True)

    def _refuse(self, scope: Scope) -> None:
        if scope["method"] not in _METHODS or not scope["raw_path"].startswith(b"/"):
            raise HTTPException(405, f"method {scope['method']!r} is not one of {', '.join(sorted(_METHODS))}")

    async def _forward(self, scope: Scope, body: _Body, send: Send) -> None:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        try:
            answer = await self._engine.ask(
                scope["method"],
                target.decode("latin-1"),
                headers=self._headers(scope),
                body=body if body.is_there else None,
            )
        except EngineAway:
            if body.failure is not None:
                raise body.failure from None
            raise
        mark_forwarded(scope)
        try:
            await self._stream_back(answer, send)
        except TimeoutError:
            log.info("answer ended: the client read nothing stall_seconds=%g", self._stall_seconds)
        except (aiohttp.ClientError, OSError) as error:
            log.warning("answer cut off path=%s error=%s", scope["path"], error)  # the client sees missing bytes
        finally:
            if body.is_whole and answer.content.at_eof():
                answer.release()
            else:
                answer.close()  # the connection may hold bytes of this answer: do not reuse it

    async def _stream_back(self, answer: aiohttp.ClientResponse, send: Send) -> None:
        headers = _end_to_end(((name.lower(), value) for name, value in answer.raw_headers), but=_SET_BY_SERVER)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for piece in answer.content.iter_any():
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    def _headers(self, scope: Scope) -> list[tuple[str, str]]:
        """The client's header fields. ``Host`` is kept, so that URLs which the engine makes lead to this replica."""
        client = scope.get("client")
        added = [("X-Forwarded-Proto", scope["scheme"])]
        added += [("X-Forwarded-For", client[0])] if client else []
        origin = RequestOrigin.here()  # the engine's log lines have the same id, and its spans are parts of this trace
        added += [("X-Request-ID", origin.request_id)] if origin.request_id is not None else []
        added += [("traceparent", origin.traceparent)] if origin.traceparent is not None else []
        own = {name.lower().encode() for name, _ in added}
        kept = _end_to_end(scope["headers"], but=_SET_BY_REPLICA | own)
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept] + added


class _Body:
    """The body of a request as it arrives, and whether the client is still connected after it."""

    def __init__(self, receive: Receive, headers: Headers, stall_seconds: float) -> None:
        names = {name: value for name, value in headers if name in (b"content-length", b"transfer-encoding")}
        self.is_there = names not in ({}, {b"content-length": b"0"})
        self.failure: HTTPException | None = None
        self._receive = receive
        self._stall_seconds = stall_seconds
        self._whole = asyncio.Event()
        if not self.is_there:
            self._whole.set()

    @property
    def is_whole(self) -> bool:
        return self._whole.is_set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_more = True
        while is_more:
            try:
                async with asyncio.timeout(self._stall_seconds):
                    message = await self._receive()
            except TimeoutError:
                self.failure = HTTPException(408, f"the request made no progress for {self._stall_seconds:g} seconds")
                raise self.failure from None
            except HTTPException as error:  # an upload limit
                self.failure = error
                raise
            if message["type"] == "http.disconnect":
                self.failure = HTTPException(400, "the request was not sent to its end")
                raise self.failure
            is_more = message.get("more_body", False)
            yield message.get("body", b"")
        self._whole.set()

    async def client_left(self) -> None:
        """Returns when the client disconnects after its whole request has arrived."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _end_to_end(headers: Headers, *, but: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """Header fields without those of a single connection and those in ``but``."""
    listed = list(headers)
    named = {word.strip().lower() for name, value in listed if name == b"connection" for word in value.split(b",")}
    return [(name, value) for name, value in listed if name not in _HOP_BY_HOP | named | set(but)]
