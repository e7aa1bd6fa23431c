from __future__ import annotations

import asyncio
import socket

import pytest

from chockstone.backends.channel import BlockingChannel, Message
from chockstone.backends.ray.rank_listener import RankListener, connect_to_listener


async def test_rank_0_connects_with_the_token() -> None:
    listener = RankListener()
    await listener.open("127.0.0.1")

    sock = await asyncio.to_thread(connect_to_listener, "127.0.0.1", listener.port, listener.token)
    channel = await asyncio.wait_for(listener.connected, 30)
    rank = BlockingChannel(sock)
    rank.send(Message({"a": 1}, b"body"))

    assert await asyncio.wait_for(channel.receive(), 30) == Message({"a": 1}, b"body")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    rank.close()
    channel.close()


@pytest.mark.parametrize("token", ["x" * 32, "short", ""])
async def test_a_connection_with_another_token_is_closed(token: str) -> None:
    listener = RankListener()
    await listener.open("127.0.0.1")

    def try_in() -> bytes:
        with connect_to_listener("127.0.0.1", listener.port, token) as sock:
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(1)

    assert await asyncio.wait_for(asyncio.to_thread(try_in), 30) == b""
    assert not listener.connected.done()
    listener.close()


async def test_nobody_connects_after_rank_0() -> None:
    listener = RankListener()
    await listener.open("127.0.0.1")
    sock = await asyncio.to_thread(connect_to_listener, "127.0.0.1", listener.port, listener.token)
    channel = await asyncio.wait_for(listener.connected, 30)

    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(connect_to_listener, "127.0.0.1", listener.port, listener.token)

    sock.close()
    channel.close()


def test_each_listener_has_a_token_of_its_own() -> None:
    async def tokens() -> set[str]:
        return {RankListener().token for _ in range(10)}

    assert len(asyncio.run(tokens())) == 10
