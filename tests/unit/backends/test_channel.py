from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chockstone.backends.channel import AsyncChannel, BlockingChannel, ChannelClosed, Message

LARGE = bytes(range(256)) * (40 << 12)  # 40 MiB, more than any buffer on the way

Ends = tuple[AsyncChannel, BlockingChannel, socket.socket]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    """The server's end, the worker's, and the worker's socket."""
    ours, theirs = socket.socketpair()
    server = await AsyncChannel.over(ours)
    worker = BlockingChannel(theirs)
    yield server, worker, theirs
    worker.close()
    server.close()
    await asyncio.sleep(0)


MESSAGES = [
    Message(),
    Message({"word": "stop"}),
    Message({"nested": {"list": [1, 2.5, None, True, "ä"]}}, b"\x00\xff"),
    Message({}, b"a body without a head"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=str)
async def test_a_message_arrives_as_it_was_sent(ends: Ends, message: Message) -> None:
    server, worker, _ = ends

    await server.send(message)
    received = await asyncio.to_thread(worker.receive)
    worker.send(received)

    assert received == await server.receive() == message


async def test_large_bodies_arrive_whole_both_ways(ends: Ends) -> None:
    server, worker, _ = ends
    message = Message({"word": "pass"}, LARGE)

    _, received = await asyncio.gather(server.send(message), asyncio.to_thread(worker.receive))
    assert received == message

    _, returned = await asyncio.gather(asyncio.to_thread(worker.send, message), server.receive())
    assert returned == message


async def test_messages_of_many_senders_do_not_mix(ends: Ends) -> None:
    server, worker, _ = ends
    messages = [Message({"number": number}, bytes([number]) * 100_000) for number in range(50)]

    async def receive_all() -> list[Message]:
        return [await asyncio.to_thread(worker.receive) for _ in messages]

    received, *_ = await asyncio.gather(receive_all(), *(server.send(message) for message in messages))

    assert received == messages  # in the order they were sent


async def test_messages_of_many_threads_do_not_mix(ends: Ends) -> None:
    server, worker, _ = ends
    messages = [Message({"number": number}, bytes([number]) * 100_000) for number in range(50)]

    with ThreadPoolExecutor(4) as threads:
        for message in messages:
            threads.submit(worker.send, message)
        received = [await server.receive() for _ in messages]

    assert sorted(received, key=lambda message: message.values["number"]) == messages


async def test_the_server_learns_that_the_worker_is_gone(ends: Ends) -> None:
    server, worker, theirs = ends
    worker.send(Message({"last": "words"}))
    theirs.shutdown(socket.SHUT_RDWR)

    assert await server.receive() == Message({"last": "words"})
    with pytest.raises(ChannelClosed):
        await server.receive()


async def test_a_message_that_was_cut_off_is_none(ends: Ends) -> None:
    server, _, theirs = ends
    theirs.sendall(b"\x02\x00\x00\x00" + b"\x09" + bytes(7) + b"{}four")
    theirs.shutdown(socket.SHUT_RDWR)

    with pytest.raises(ChannelClosed):
        await server.receive()


async def test_the_worker_learns_that_the_server_is_gone(ends: Ends) -> None:
    server, worker, _ = ends
    await server.send(Message({"last": "words"}))
    server.close()

    assert await asyncio.to_thread(worker.receive) == Message({"last": "words"})
    with pytest.raises(ChannelClosed, match="the socket was closed"):
        await asyncio.to_thread(worker.receive)
    with pytest.raises(ChannelClosed):
        worker.send(Message({}, LARGE))


async def test_nothing_is_sent_over_a_channel_that_was_closed(ends: Ends) -> None:
    server, _, _ = ends
    server.close()

    with pytest.raises(ChannelClosed):
        await server.send(Message())


async def test_a_server_in_the_middle_of_sending_learns_that_the_worker_is_gone(ends: Ends) -> None:
    server, _, theirs = ends
    sending = asyncio.create_task(server.send(Message({}, LARGE)))
    await asyncio.sleep(0.01)
    assert not sending.done()

    theirs.shutdown(socket.SHUT_RDWR)
    theirs.close()

    with pytest.raises(ChannelClosed):
        await sending


async def test_reading_waits_without_keeping_others_from_writing(ends: Ends) -> None:
    server, worker, _ = ends
    received: list[Message] = []
    reader = threading.Thread(target=lambda: received.append(worker.receive()))
    reader.start()

    worker.send(Message({"while": "reading"}))

    assert await server.receive() == Message({"while": "reading"})
    await server.send(Message({"now": "go"}))
    await asyncio.to_thread(reader.join)
    assert received == [Message({"now": "go"})]
