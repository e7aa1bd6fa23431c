"""An event stream: reads server-sent events, and connects again, after the last event, when the server was away."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from chockstone.cli.remote.client import Server, ServerUnreachable

_SILENCE_SECONDS: Final = 45.0  # a server sends a comment every 15 seconds
_RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StreamEvent:
    event_id: int
    data: Any  # Any: JSON


def follow(
    server: Server,
    path: str,
    *,
    after: int,
    on_away: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[StreamEvent]:
    """The events after ``after``, for ever. ``on_away`` is called with the reason when the server goes away.

    Raises the errors of ``Server`` at the first connection, and when the server refuses a later one.
    """
    is_first, is_away = True, False
    while True:
        try:
            with server.open(path, headers={"Last-Event-ID": str(after)}, seconds=_SILENCE_SECONDS) as answer:
                is_first = is_away = False
                for event in parse_events(answer):
                    after = event.event_id
                    yield event
        except ServerUnreachable as error:
            if is_first:
                raise
            if not is_away:
                on_away(str(error))
            is_away = True
        except (OSError, http.client.HTTPException, ValueError):  # it broke off: the next connection tells more
            pass
        sleep(_RETRY_SECONDS)


def parse_events(lines: Iterator[bytes]) -> Iterator[StreamEvent]:
    """The whole events among the lines of a stream. Raises ValueError for data that is not JSON."""
    event_id, data = 0, b""
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b": ")
        if name == b"id" and value.isdigit():
            event_id = int(value)
        elif name == b"data":
            data = value
        elif not name and data:
            yield StreamEvent(event_id, json.loads(data))
            data = b""
