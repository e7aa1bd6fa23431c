from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chockstone.cli.remote import client as module
from chockstone.cli.remote.client import NotThere, Server, ServerDenied, ServerRefused, ServerUnreachable, connect

Answer = tuple[int, dict[str, str], bytes]


class _Handler(BaseHTTPRequestHandler):
    answers: list[Answer]
    seen: list[tuple[str, str, str | None]]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.seen.append((self.command, self.path, self.headers["X-API-Key"]))
        status, headers, body = self.answers.pop(0)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        pass


class Told:
    """A server that answers as it is told."""

    def __init__(self, server: Server, handler: type[_Handler]) -> None:
        self.server = server
        self.handler = handler

    def will_answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        self.handler.answers.append((status, headers, body))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # is not asked for what is on this machine
    handler = type("Handler", (_Handler,), {"answers": [], "seen": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Told(connect(f"http://127.0.0.1:{http.server_port}/prefix/", "tml-mine"), handler)
    http.shutdown()
    thread.join()
    http.server_close()


def test_requests_carry_the_key_and_keep_the_prefix(told: Told) -> None:
    told.will_answer(200, b'{"a": 1}')
    told.will_answer(204, b"")

    assert told.server.get("runs", {"limit": 2}) == {"a": 1}
    assert told.server.delete("trash") == {}
    assert told.handler.seen == [
        ("GET", "/prefix/api/v1/runs?limit=2", "tml-mine"),
        ("DELETE", "/prefix/api/v1/trash", "tml-mine"),
    ]


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (400, b'{"detail": "the rule"}', ServerRefused, "^the rule$"),
        (422, b'{"detail": [1]}', ServerRefused, r"^\[1\]$"),
        (401, b'{"detail": "who"}', ServerDenied, "^who. Server: http://127.0.0.1:.* Set a key with --key"),
        (403, b'{"detail": "not you"}', ServerDenied, "^not you$"),
        (404, b'{"detail": "no such run"}', NotThere, "^no such run$"),
        (404, b'{"detail": "Not Found"}', ServerUnreachable, "has no route 'x': it is older than this program"),
        (404, b"<html>", ServerUnreachable, "or not a Chockstone server"),
        (500, b'{"detail": "oh"}', ServerUnreachable, "failed with status 500: oh"),
        (200, b"<html>", ServerUnreachable, "is not a Chockstone server"),
        (200, b"[]", ServerUnreachable, "is not a Chockstone server"),
    ],
)
def test_answers_become_errors_that_say_what_to_do(
    told: Told, status: int, body: bytes, error: type[Exception], message: str
) -> None:
    told.will_answer(status, body)

    with pytest.raises(error, match=message):
        told.server.get("x")


def test_a_busy_server_is_asked_again_but_not_for_ever(told: Told) -> None:
    told.will_answer(429, b'{"detail": "busy"}')
    told.will_answer(503, b"", **{"Retry-After": "soon"})
    told.will_answer(200, b'{"a": 1}')
    for _ in range(5):
        told.will_answer(429, b'{"detail": "busy"}')

    assert told.server.post("x") == {"a": 1}
    with pytest.raises(ServerUnreachable, match="busy"):
        told.server.post("x")
    assert told.handler.answers == []


def test_a_redirect_is_not_followed_with_the_key(told: Told) -> None:
    told.will_answer(302, Location="http://other/archive")
    told.will_answer(200, b'{"url": "/relative"}')
    told.will_answer(200)

    assert told.server.place("archive") == "http://other/archive"
    assert told.server.place("archive").endswith("/relative")
    with pytest.raises(ServerUnreachable, match="returned no download URL"):
        told.server.place("archive")
    for elsewhere in ("file:///etc/passwd", "ftp://other/archive"):
        told.will_answer(302, Location=elsewhere)
        with pytest.raises(ServerUnreachable, match="which is not http or https"):
            told.server.place("archive")
    assert len(told.handler.seen) == 5


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("127.0.0.1:8000", "tml-x", "is not the URL of a server"),
        ("file:///etc/passwd", "tml-x", "is not the URL of a server"),
        ("http://127.0.0.1", "tml-x\r\nEvil: 1", "characters that no key has"),
    ],
)
def test_what_cannot_be_asked_is_refused(url: str, key: str, message: str) -> None:
    with pytest.raises(ServerRefused, match=message):
        connect(url, key)
