from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from chockstone.api.event_streams import EventStreamResponse, EventStreams, encode_event
from chockstone.engine.config import Busy


def test_an_event_has_an_id_a_type_and_one_line_of_data() -> None:
    assert encode_event(b"[1]", event="points", event_id=7) == b"id: 7\nevent: points\ndata: [1]\n\n"
    assert encode_event(b"{}", event="gone") == b"event: gone\ndata: {}\n\n"


async def sent(response: EventStreamResponse) -> bytes:
    """What a client gets that stays connected."""
    body = b""
    still_connected = asyncio.Event()

    async def receive() -> Message:
        await still_connected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal body
        body += message.get("body", b"")

    await response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    return body


async def events(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_a_stream_counts_before_its_answer_begins_and_until_it_has_ended() -> None:
    streams = EventStreams(max_streams=3, max_per_user=2)
    first, second = (streams.open("ann", events(b"a", b"b")) for _ in range(2))

    with pytest.raises(Busy, match="2 event streams of yours are open"):
        streams.open("ann", events())
    third = streams.open("bob", events())
    with pytest.raises(Busy, match="3 event streams are open"):
        streams.open("carl", events())

    assert len(streams) == 3
    assert await sent(first) == b"ab"
    assert len(streams) == 2
    again = streams.open("ann", events())
    for response in (second, third, again):
        await sent(response)
    assert len(streams) == 0


async def test_a_stream_that_fails_is_not_counted_any_longer() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"a"
        raise ZeroDivisionError

    streams = EventStreams(max_streams=1)
    with pytest.raises(ZeroDivisionError):
        await sent(streams.open("ann", failing()))

    assert len(streams) == 0
