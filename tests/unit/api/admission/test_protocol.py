"""The limits on header fields and on a client's time, on a real socket. ``tests/hostile`` has the attacks."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from chockstone.api.admission.limits import ConnectionLimits
from chockstone.api.admission.protocol import CONNECTION, recognize_connection
from chockstone.api.serving.http_server import http_config
from support.api.loopback_server import serving


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    recognize_connection(scope)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def ask(request: bytes, limits: ConnectionLimits) -> bytes:
    async with serving(http_config(answer, limits)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answered = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answered


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 3000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431"),
        (b"not HTTP at all\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: ", b"408"),
    ],
)
async def test_a_request_is_answered_or_refused_by_its_head(request_bytes: bytes, status: bytes) -> None:
    answered = await ask(request_bytes, ConnectionLimits(head_bytes=1000, head_seconds=0.2, linger_seconds=0.2))

    assert answered.startswith(b"HTTP/1.1 " + status)
    assert status == b"200" or b'"detail"' in answered


async def test_a_connection_without_a_request_is_closed_without_a_word() -> None:
    assert await ask(b"", ConnectionLimits(head_seconds=0.1)) == b""


def test_where_there_is_no_socket_nothing_is_recognized() -> None:
    recognize_connection({"type": "http"})
    recognize_connection({"type": "http", "state": {CONNECTION: None}})
