"""The passage: a request handed on to the engine as it came, and the answer handed back as it comes.

Bodies pass in pieces, and whoever sends waits for whoever takes, so little of them is held. What concerns one
connection only stays on its side. A client that leaves takes its request with it; an engine that leaves is told
as a 503, which clients try again, or, when an answer has begun, by breaking that off.
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

log = logging.getLogger(__name__)
Headers = Iterable[tuple[bytes, bytes]]  # names in small letters

PATIENCE_SECONDS: Final = 300.0  # with a client that neither sends nor takes
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OF_ONE_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_OF_OUR_REQUEST: Final = frozenset({b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"})
_OF_OUR_ANSWER: Final = frozenset({b"date", b"server"})


class EngineProxy:
    """An ASGI app."""

    def __init__(self, engine: EngineLink, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._engine = engine
        self._patience = patience_seconds
        self._is_away = False  # the engine, when it was last asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        self._refuse(scope)
        body = _Body(receive, scope["headers"], self._patience)
        passing = asyncio.create_task(self._pass(scope, body, send))
        leaving = asyncio.create_task(body.client_left())
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            passing.cancel()
            leaving.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    def _refuse(self, scope: Scope) -> None:
        if scope["method"] not in _METHODS or not scope["raw_path"].startswith(b"/"):
            raise HTTPException(405, f"method {scope['method']!r} is not one of {', '.join(sorted(_METHODS))}")

    async def _pass(self, scope: Scope, body: _Body, send: Send) -> None:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        try:
            answer = await self._engine.ask(
                scope["method"],
                target.decode("latin-1"),
                headers=self._headers(scope),
                body=body if body.is_there else None,
            )
        except EngineAway as error:
            if body.failure is not None:
                raise body.failure from None
            if not self._is_away:
                log.warning("%s", error.detail)
            self._is_away = True
            raise
        if self._is_away:
            self._is_away = False
            log.info("the engine at %r answers again", self._engine.url)
        try:
            await self._hand_back(answer, send)
        except TimeoutError:
            log.info("answer given up: the client took nothing for %g seconds", self._patience)
        except (aiohttp.ClientError, OSError) as error:
            log.warning("answer broken off path=%s error=%s", scope["path"], error)  # the missing bytes tell the client
        finally:
            if body.is_whole and answer.content.at_eof():
                answer.release()
            else:
                answer.close()  # whatever is still on this connection belongs to nobody

    async def _hand_back(self, answer: aiohttp.ClientResponse, send: Send) -> None:
        headers = _passed(((name.lower(), value) for name, value in answer.raw_headers), but=_OF_OUR_ANSWER)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for piece in answer.content.iter_any():
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    def _headers(self, scope: Scope) -> list[tuple[str, str]]:
        """The client's, ``Host`` among them, so that the URLs which the engine makes lead back through here."""
        client = scope.get("client")
        added = [("X-Forwarded-Proto", scope["scheme"])]
        added += [("X-Forwarded-For", client[0])] if client else []
        passed = _passed(scope["headers"], but=_OF_OUR_REQUEST)
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in passed] + added


class _Body:
    """What a client sends, as it arrives; and then, whether the client is still there."""

    def __init__(self, receive: Receive, headers: Headers, patience_seconds: float) -> None:
        names = {name: value for name, value in headers if name in (b"content-length", b"transfer-encoding")}
        self.is_there = names not in ({}, {b"content-length": b"0"})
        self.failure: HTTPException | None = None
        self._receive = receive
        self._patience = patience_seconds
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
                async with asyncio.timeout(self._patience):
                    message = await self._receive()
            except TimeoutError:
                self.failure = HTTPException(408, f"the request did not go on for {self._patience:g} seconds")
                raise self.failure from None
            except HTTPException as error:  # of the limits on uploads
                self.failure = error
                raise
            if message["type"] == "http.disconnect":
                self.failure = HTTPException(400, "the request was not sent to its end")
                raise self.failure
            is_more = message.get("more_body", False)
            yield message.get("body", b"")
        self._whole.set()

    async def client_left(self) -> None:
        """Returns when the client is gone, after all of its request has come."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _passed(headers: Headers, *, but: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """Those that are for the other end."""
    listed = list(headers)
    named = {word.strip().lower() for name, value in listed if name == b"connection" for word in value.split(b",")}
    return [(name, value) for name, value in listed if name not in _OF_ONE_CONNECTION | named | set(but)]
