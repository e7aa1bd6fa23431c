"""Event streams: server-sent events, and how many of them may be open.

Clients connect again by themselves when a stream ends, with the id of the last event that they got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from fastapi.responses import StreamingResponse

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

    def refuse_when_full(self, user_id: str) -> None:
        """Raises Busy when too many are open."""
        if self._open[user_id] >= self._max_per_user:
            raise Busy(f"{self._max_per_user} event streams of yours are open; close some and connect again")
        if len(self) >= self._max_streams:
            raise Busy(f"{self._max_streams} event streams are open, and no more may be; connect again later")

    @contextmanager
    def opened(self, user_id: str) -> Iterator[None]:
        """Inside, one more is open. Raises Busy when too many are: ask before the answer begins, too."""
        self.refuse_when_full(user_id)
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]


def encode_event(data: bytes, *, event: str, event_id: int | None = None) -> bytes:
    """``data`` is one line, such as JSON."""
    head = b"" if event_id is None else b"id: %d\n" % event_id
    return b"%bevent: %b\ndata: %b\n\n" % (head, event.encode(), data)


def stream_response(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)
