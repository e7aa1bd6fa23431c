from __future__ import annotations

import asyncio

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Message

from chockstone.api.chat.connected import while_connected


def request_of(messages: asyncio.Queue[Message]) -> Request:
    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, messages.get)


async def test_the_result_of_the_work_is_returned() -> None:
    async def work() -> int:
        return 3

    assert await while_connected(request_of(asyncio.Queue()), work()) == 3


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await while_connected(request_of(asyncio.Queue()), work())


async def test_the_work_is_cancelled_when_the_client_leaves() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    ended = asyncio.Event()

    async def work() -> None:
        messages.put_nowait({"type": "http.disconnect"})
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await while_connected(request_of(messages), work())
    assert ended.is_set()
