from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from chockstone.cli.remote.client import NotThere, ServerUnreachable, connect
from chockstone.cli.remote.metrics.event_stream import StreamEvent, follow, parse_events


def test_events_are_parsed_and_comments_skipped() -> None:
    lines = [
        b": still here\n",
        b"\n",
        b"id: 7\r\n",
        b"event: points\n",
        b"data: [1, 2]\n",
        b"\n",
        b"data: [3]\n",
        b"\n",
    ]

    assert list(parse_events(iter([*lines, b"\n"]))) == [StreamEvent(7, [1, 2]), StreamEvent(7, [3])]


def test_half_an_event_is_none() -> None:
    assert list(parse_events(iter([b"id: 7\n", b"data: [1]\n"]))) == []


class Restarting(BaseHTTPRequestHandler):
    """Breaks off after each event; away at the second connection, and the run is gone at the fourth."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers["Last-Event-ID"])
        connection = len(self.asked)
        status = {2: 500, 4: 404}.get(connection, 200)
        self.send_response(status)
        self.end_headers()
        if status == 200:
            self.wfile.write(f"id: {connection}\ndata: [{connection}]\n\nid: 99\ndata: [".encode())
        else:
            self.wfile.write(b'{"detail": "it is not there"}')

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def restarting() -> Iterator[str]:
    Restarting.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Restarting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_stream_that_breaks_off_is_continued_after_its_last_event() -> None:
    away: list[str] = []
    events: list[StreamEvent] = []
    with restarting() as url, pytest.raises(NotThere):
        events.extend(follow(connect(url, "tml-x"), "s", after=0, on_away=away.append, sleep=lambda _: None))

    assert events == [StreamEvent(1, [1]), StreamEvent(3, [3])]
    assert Restarting.asked == ["0", "1", "1", "3"]
    assert len(away) == 1 and "failed with status 500" in away[0]


def test_a_server_that_never_answered_is_an_error() -> None:
    with restarting() as url:
        pass
    with pytest.raises(ServerUnreachable):
        next(follow(connect(url, "tml-x"), "s", after=0, on_away=print, sleep=lambda _: None))
