"""Event streams: server-sent events, and how many of them may be open.

Clients connect again by themselves when a stream ends, with the id of the last event that they got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chockstone.engine.config import Busy

PING: Final = b": still here\n\n"  # a comment: it shows that both ends are alive
PING_SECONDS: Final = 15.0  # without an event
MAX_STREAMS: Final = 512  # of all callers
MAX_STREAMS_PER_USER: Final = 64
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second one is for nginx


class EventStreams:
    """The streams that are open."""

    def __init__(self, *, max_streams: int = MAX_STREAMS, max_per_user: int = MAX_STREAMS_PER_USER) -> None:
        self._max_streams = max_streams
        self._max_per_user = max_per_user
        self._open: Counter[str] = Counter()  # by user

    def __len__(self) -> int:
        return self._open.total()

    def open(self, user_id: str, events: AsyncIterator[bytes]) -> EventStreamResponse:
        """A response that sends ``events``. It counts from here on, until it has ended. Raises Busy when too many are
        open: before the answer begins, so that the client gets the reason.
        """
        if self._open[user_id] >= self._max_per_user:
            raise Busy(f"{self._max_per_user} event streams of yours are open; close some and connect again")
        if len(self) >= self._max_streams:
            raise Busy(f"{self._max_streams} event streams are open, and no more may be; connect again later")
        self._open[user_id] += 1
        return EventStreamResponse(self, user_id, events)

    def _ended(self, user_id: str) -> None:
        self._open[user_id] -= 1
        if not self._open[user_id]:
            del self._open[user_id]


class EventStreamResponse(StreamingResponse):
    """Made by ``EventStreams.open``. Must be sent: its place is free again when that has ended, in whatever way."""

    def __init__(self, streams: EventStreams, user_id: str, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._streams = streams
        self._user_id = user_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams._ended(self._user_id)


def encode_event(data: bytes, *, event: str, event_id: int | None = None) -> bytes:
    """``data`` is one line, such as JSON."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return b"%bevent: %b\ndata: %b\n\n" % (head, event.encode(), data)
