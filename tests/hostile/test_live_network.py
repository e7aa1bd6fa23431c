"""Strangers on the network of a real ``chockstone serve`` process, with the limits and deadlines that users get.

``test_network`` has the details, with limits that a test chooses. These tests show that the process as a whole keeps
the promises: what it answers, what a bystander notices, and how much memory it takes.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from hostile.network import KEYS, Wire, head
from support.live import LiveServer

KIB, MIB = 1 << 10, 1 << 20
ANN, BOB = (f"X-API-Key: {KEYS[user]}" for user in ("ann", "bob"))
JSON = "Content-Type: application/json"
BYSTANDER_POSTS = 20


@pytest.fixture(scope="module")
def guarded(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with API keys and a body limit of 16 MiB."""
    flags = [f"--max-body-bytes={16 * MIB}", *(f"--key={user}={KEYS[user]}" for user in ("ann", "bob"))]
    one = {"tiny-qwen3": models["tiny-qwen3"]}
    with LiveServer(one, tmp_path_factory.mktemp("guarded"), *flags, key=KEYS["bob"]) as server:
        with server.http() as http:
            while http.get("readyz").status_code != 200:  # the worker loads before anything is measured
                time.sleep(0.05)
        yield server
        assert "Traceback" not in server.log()


@pytest.fixture
def bystander(guarded: LiveServer) -> Iterator[Callable[[], None]]:
    """Bob, who has a key: every one of his requests is answered, whatever others do."""
    with guarded.http() as http:

        def ask() -> None:
            answers = [http.post("create_session", json={"sdk_version": "0.36.0"}) for _ in range(BYSTANDER_POSTS)]
            assert [answer.status_code for answer in answers] == [200] * BYSTANDER_POSTS, answers[-1].text

        ask()  # what the first requests allocate is no stranger's doing
        yield ask


def connect(server: LiveServer) -> Wire:
    port = httpx.URL(server.url).port
    assert port is not None
    return Wire.to(port)


class Memory:
    """Of the process that answers; workers are processes of their own."""

    def __init__(self, server: LiveServer) -> None:
        self._folder = Path(f"/proc/{server.pid}")
        with suppress(OSError):  # then the growth over an older peak is what is measured
            (self._folder / "clear_refs").write_text("5")  # forget the peak
        self._before = self._peak_bytes()

    def growth_bytes(self) -> int:
        """From this object's making to the highest since."""
        return self._peak_bytes() - self._before

    def _peak_bytes(self) -> int:
        lines = (self._folder / "status").read_text().splitlines()
        [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(peak) * KIB


def test_nine_unfinished_uploads_of_8_mib_without_a_key_hold_nobody_up(
    guarded: LiveServer, bystander: Callable[[], None]
) -> None:
    memory = Memory(guarded)
    with ExitStack() as stack:
        strangers = [stack.enter_context(connect(guarded)) for _ in range(9)]
        for stranger in strangers:
            stranger.send(head("POST /api/v1/create_session", JSON, f"Content-Length: {8 * MIB}"))
            stranger.send(bytes(8 * MIB - 1))

        bystander()

        assert [stranger.answer().status for stranger in strangers] == [401] * 9
        assert memory.growth_bytes() < 32 * MIB, "72 MiB were sent"


def test_64_mib_of_header_are_refused_after_64_kib(guarded: LiveServer, bystander: Callable[[], None]) -> None:
    memory = Memory(guarded)
    with connect(guarded) as stranger:
        stranger.send(b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 64 * KIB)

        assert stranger.answer().status == 431

        for _ in range(64):
            stranger.send(b"x" * MIB)  # taken and dropped, or refused by a closed connection
        bystander()
        assert memory.growth_bytes() < 16 * MIB
        assert stranger.rest() == b""


def test_silent_and_dripping_connections_are_closed(guarded: LiveServer, bystander: Callable[[], None]) -> None:
    """They get the 20 seconds that a head may take, and the 10 seconds of a body whose request is refused."""
    memory = Memory(guarded)
    with ExitStack() as stack:
        silent, heads, bodies = ([stack.enter_context(connect(guarded)) for _ in range(100)] for _ in range(3))
        for wire in heads:
            wire.send(b"GET /api/v1/healthz HTTP/1.1\r\nX-Long: ")
        for wire in bodies:
            wire.send(head("POST /api/v1/create_session", JSON, "Content-Length: 100000"))
            assert wire.answer().status == 401
        bystander()
        assert memory.growth_bytes() < 32 * MIB, "about 100 KiB for each of 300 connections"

        received = drip_until_closed([*silent, *heads, *bodies], is_silent=set(silent))

        assert {received[wire] for wire in (*silent, *bodies)} == {b""}
        assert {received[wire][:12] for wire in heads} == {b"HTTP/1.1 408"}
        bystander()
        assert memory.growth_bytes() < 32 * MIB


def test_json_that_is_nested_deep_or_has_many_lists_is_refused_beside_a_bystander(
    guarded: LiveServer, bystander: Callable[[], None]
) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    wide = b"[" + b"[]," * 2_600_000 + b"[]]"
    memory = Memory(guarded)
    with ExitStack() as stack:
        clients = {stack.enter_context(connect(guarded)): body for body in (deep, wide) * 4}
        for client, body in clients.items():
            client.send(head("POST /api/v1/create_session", ANN, JSON, f"Content-Length: {len(body)}") + body)

        bystander()

        answers = [(client.answer(), body) for client, body in clients.items()]
    assert {answer.status for answer, body in answers if body is deep} <= {400, 422}
    assert {answer.status for answer, body in answers if body is wide} == {413}
    assert memory.growth_bytes() < 64 * MIB, "the bodies have 32 MiB; their lists would take 600"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1"])
@pytest.mark.parametrize("line", ["GET /api/v1/training_runs", "GET /api/v1/healthz", "GET /metrics"])
def test_without_keys_a_foreign_host_is_misdirected(live: LiveServer, host: str, line: str) -> None:
    with connect(live) as page:
        page.send(head(line, "X-API-Key: tml-any", host=host))

        assert page.answer().status == 421


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_without_keys_a_page_of_a_foreign_origin_is_refused(live: LiveServer, origin: str) -> None:
    with connect(live) as page:
        page.send(head("DELETE /api/v1/training_runs/x", "X-API-Key: tml-any", f"Origin: {origin}"))

        assert page.answer().status == 403


AMBIGUOUS = {
    "two hosts": head("GET /api/v1/healthz", "Host: localhost"),
    "no host": head("GET /api/v1/healthz", host=None),
    "HTTP/0.9": b"GET /api/v1/healthz\r\n\r\n",
    "HTTP/0.9 by name": b"GET /api/v1/healthz HTTP/0.9\r\nHost: localhost\r\n\r\n",
    "two API keys": head("GET /api/v1/training_runs", ANN, BOB),
}


@pytest.mark.parametrize("which", AMBIGUOUS)
def test_an_ambiguous_request_is_refused(live: LiveServer, which: str) -> None:
    with connect(live) as client:
        client.send(AMBIGUOUS[which])

        assert client.answer().status == 400


def drip_until_closed(wires: list[Wire], *, is_silent: set[Wire]) -> dict[Wire, bytes]:
    """Send a byte a second on those that are not silent until the server has closed all; what it answered."""
    received = dict.fromkeys(wires, b"")
    left = {wire.sock: wire for wire in wires}
    for _ in range(120):
        until = time.monotonic() + 1.0
        while left and (seconds := until - time.monotonic()) > 0:
            for sock in select.select(list(left), [], [], seconds)[0]:
                wire = left[sock]
                if not (piece := wire.receive()):
                    del left[sock]
                received[wire] += piece
        if not left:
            return received
        for wire in set(left.values()) - is_silent:
            wire.send(b"x")
    raise AssertionError(f"{len(left)} of {len(wires)} connections are still open after 120 bytes on each")
