"""Strangers on the network: what they send costs a bounded amount of memory and time, and others do not notice."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import zstandard

from chockstone.api.admission.limits import ConnectionLimits, UploadLimits
from hostile.network import KEYS, Network, Wire, head

KIB = 1 << 10
ANN = f"X-API-Key: {KEYS['ann']}"
BOB = f"X-API-Key: {KEYS['bob']}"
JSON = "Content-Type: application/json"
# Heads have time enough for a client on a busy machine that connects, and sends a moment later.
SHORT = ConnectionLimits(head_seconds=3.0, idle_seconds=1, linger_seconds=0.3, write_seconds=1.0)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """With the limits that every server has, but for the size of bodies."""
    with Network(tmp_path_factory.mktemp("network")) as network:
        yield network


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """With little time for everything."""
    uploads = UploadLimits(body_bytes=1 << 20, silence_seconds=0.3)
    with Network(tmp_path_factory.mktemp("hasty"), connections=SHORT, limits=uploads) as network:
        yield network


@pytest.fixture
def bystander(network: Network) -> Iterator[Callable[[], None]]:
    """Bob, whose requests are answered whatever others do."""
    with network.http() as http:

        def ask() -> None:
            answers = [http.post("create_session", json={"sdk_version": "0.36.0"}) for _ in range(5)]
            assert [answer.status_code for answer in answers] == [200] * 5, answers[-1].text

        ask()
        yield ask


@pytest.mark.parametrize("credential", ["X-Nothing: 1", "X-API-Key: tml-unknown", "X-API-Key: eyJ.a.b", "X-API-Key: x"])
@pytest.mark.parametrize("path", ["forward_backward", "create_session", "nowhere"])
def test_a_body_without_a_valid_key_is_not_waited_for(network: Network, credential: str, path: str) -> None:
    with network.connect() as stranger:
        stranger.send(head(f"POST /api/v1/{path}", credential, JSON, "Content-Length: 524288"))

        answer = stranger.answer()

    assert answer.status == 401
    assert answer.detail
    assert network.uploads.held.total == 0


def test_unfinished_uploads_without_a_key_hold_nothing(network: Network, bystander: Callable[[], None]) -> None:
    with ExitStack() as stack:
        strangers = [stack.enter_context(network.connect()) for _ in range(20)]
        for stranger in strangers:
            stranger.send(head("POST /api/v1/create_session", JSON, f"Content-Length: {1 << 20}"))
            stranger.send(b"[" * 512 * KIB)

        bystander()

        assert network.uploads.held.total == 0
        assert {stranger.answer().status for stranger in strangers} == {401}


def test_a_body_to_a_public_route_may_be_small_only(network: Network) -> None:
    with network.connect() as stranger:
        stranger.send(head("GET /api/v1/healthz", f"Content-Length: {65 * KIB}"))
        assert stranger.answer().status == 413
    with network.connect() as stranger:
        stranger.send(head("GET /api/v1/healthz", "Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\n\r\n")
        assert stranger.answer().status == 200


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("create_session", b"[" + b"[]," * 300_000 + b"[]]"),
        ("create_session", b'{"tags": [' + b"{}," * 300_000 + b"{}]}"),
        ("asample", b'{"prompt": [' + b"[]," * 300_000 + b"[]]}"),
        ("forward_backward", b'{"a": [' + b"[]," * 300_000 + b"[]]}"),
    ],
)
def test_json_that_takes_long_to_decode_is_refused_undecoded(network: Network, route: str, body: bytes) -> None:
    with network.http() as http:
        answer = http.post(route, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 413
    assert "lists and objects" in answer.json()["detail"]


def test_one_callers_uploads_do_not_refuse_anothers(network: Network, bystander: Callable[[], None]) -> None:
    def upload(credential: str, size: int) -> Wire:
        client = stack.enter_context(network.connect())
        client.send(head("POST /api/v1/forward_backward", credential, f"Content-Length: {1 << 20}"))
        client.send(bytes(size))
        return client

    with ExitStack() as stack:
        for _ in range(4):  # unfinished ones that together are as large as the limit, to a few bytes
            upload(ANN, (1 << 20) - 1)
        _until(lambda: network.uploads.held.total == (4 << 20) - 4)

        bystander()  # each request of his exceeds the limit, and he holds less than his share of it

        assert upload(ANN, 100).answer().status == 429
        upload(BOB, (1 << 20) - 1)
        _until(lambda: network.uploads.held.total == (5 << 20) - 5)
        upload(BOB, (1 << 20) - 1)
        _until(lambda: network.uploads.held.total == (6 << 20) - 6)
        assert upload(BOB, 100).answer().status == 429, "half of the limit is the share of each of two"
    _until(lambda: network.uploads.held.total == 0)


def test_what_a_compressed_body_unpacks_to_counts_as_held(tmp_path_factory: pytest.TempPathFactory) -> None:
    limits = UploadLimits(body_bytes=1 << 20, json_bytes=64 * KIB, at_once=0)  # 64 KiB for each caller
    fields = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
    with Network(tmp_path_factory.mktemp("compressed"), limits=limits) as network, network.http() as http:
        bomb = http.post("asample", content=zstandard.compress(bytes(1 << 20)), headers=fields)
        small = http.post("asample", content=zstandard.compress(bytes(32 * KIB)), headers=fields)

        assert (bomb.status_code, small.status_code) == (429, 400)
        assert network.uploads.held.total == 0


@pytest.mark.parametrize(
    "start",
    [
        b"GET /" + b"x" * 90 * KIB,
        b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: " + b"x" * 90 * KIB,
        b"GET / HTTP/1.1\r\nHost: here\r\n" + b"X-Long: 1\r\n" * 9 * KIB,
        head("GET /api/v1/healthz", "Transfer-Encoding: chunked") + b"0\r\nX-Long: " + b"x" * 90 * KIB,
        b"\r\n" * 45 * KIB,
    ],
    ids=["url", "one field", "many fields", "trailer", "blank lines"],
)
def test_more_than_64_kib_of_header_fields_are_refused_before_they_end(network: Network, start: bytes) -> None:
    with network.connect() as stranger:
        stranger.send(start)

        assert b"HTTP/1.1 431" in stranger.rest()


def test_header_fields_of_less_than_64_kib_are_taken(network: Network) -> None:
    with network.connect() as client:
        for _ in range(2):
            client.send(head("GET /api/v1/healthz", "X-Long: " + "x" * 63 * KIB))
            assert client.answer().status == 200


def test_trailers_name_no_caller(network: Network) -> None:
    with network.connect() as stranger:
        stranger.send(head("GET /api/v1/training_runs", "Transfer-Encoding: chunked") + f"0\r\n{ANN}\r\n\r\n".encode())

        assert stranger.answer().status == 401


def test_a_connection_that_asks_nothing_is_closed(hasty: Network) -> None:
    with hasty.connect() as stranger:
        assert stranger.rest() == b""


def test_a_head_that_drips_is_given_up(hasty: Network) -> None:
    with hasty.connect() as stranger:
        assert stranger.drip(head("GET /api/v1/healthz", "X-Long: " + "x" * 5000)).startswith(b"HTTP/1.1 408")


def test_an_idle_connection_is_closed_also_if_blank_lines_drip_in(hasty: Network) -> None:
    with hasty.connect() as idle, hasty.connect() as dripping:
        for client in (idle, dripping):
            client.send(head())
            assert client.answer().status == 200

        dripping.drip(b"\r\n")
        assert idle.rest() == b""


def test_a_body_that_stops_is_given_up(hasty: Network) -> None:
    with hasty.connect() as client:
        client.send(head("POST /api/v1/forward_backward", ANN, "Content-Length: 1000") + b"x" * 100)

        answer = client.answer()

        assert answer.status == 408
        assert "too slowly" in answer.detail
        assert client.rest() == b""
    assert hasty.uploads.held.total == 0


@pytest.mark.parametrize("credential", ["X-API-Key: tml-unknown", ANN])
def test_a_body_that_drips_is_given_up(hasty: Network, credential: str) -> None:
    with hasty.connect() as client:
        client.send(head("POST /api/v1/create_session", credential, JSON, "Content-Length: 100000"))

        assert client.drip(b"x").count(b"HTTP/1.1 4") == 1


def test_the_rest_of_a_body_whose_request_was_answered_has_a_deadline_of_its_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limits = ConnectionLimits(head_seconds=3600.0, idle_seconds=3600, linger_seconds=0.3)
    with Network(tmp_path_factory.mktemp("answered"), connections=limits) as network, network.connect() as stranger:
        stranger.send(head("POST /api/v1/create_session", JSON, "Content-Length: 1000") + b"x")
        assert stranger.answer().status == 401

        assert stranger.rest() == b""


def test_a_response_that_nobody_takes_is_given_up(hasty: Network) -> None:
    _until(lambda: hasty.open_connections == 0)
    with hasty.connect() as stranger:
        stranger.send(head("GET /openapi.json") * 500)
        stranger.answer()  # and no other
        _until(lambda: hasty.open_connections == 0)


def test_too_many_idle_connections_push_out_each_other_and_nobody_else(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limits = replace(ConnectionLimits(), connections=20)
    with Network(tmp_path_factory.mktemp("crowded"), connections=limits) as network, ExitStack() as stack:
        known = [stack.enter_context(network.connect()) for _ in range(5)]
        for client in known:
            client.send(head("GET /api/v1/training_runs", ANN))
            assert client.answer().status == 200

        idle = [stack.enter_context(network.connect()) for _ in range(100)]
        with network.http() as http:
            assert [http.get("training_runs").status_code for _ in range(5)] == [200] * 5

        assert sum(_is_ended(each.sock) for each in idle) >= 85
        for client in known:
            client.send(head("GET /api/v1/training_runs", ANN))
            assert client.answer().status == 200


def test_strangers_that_take_their_responses_slowly_do_not_keep_others_out(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    limits = replace(ConnectionLimits(), connections=4)
    with Network(tmp_path_factory.mktemp("slow"), connections=limits) as network, ExitStack() as stack:
        for _ in range(4):
            stranger = stack.enter_context(network.connect())
            stranger.send(head("GET /openapi.json") * 500)
            stranger.answer()  # and no other, so the requests stay in progress

        for _ in range(3):
            with network.http() as http:
                assert http.get("training_runs").status_code == 200


def test_a_client_that_vanishes_in_the_middle_of_its_upload_is_one_line_in_the_log(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    for route in ("forward_backward", "create_session"):
        with network.connect() as client:
            client.send(head(f"POST /api/v1/{route}", ANN, JSON, "Content-Length: 1000") + b"x" * 100)
            _until(lambda: network.uploads.held.total == 100)
        _until(lambda: network.uploads.held.total == 0)

    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING] == []
    assert sum("forward_backward" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    "request_",
    [
        head(host=None),
        head("GET /api/v1/healthz", "Host: 127.0.0.1"),
        head("GET /api/v1/healthz", "Host: localhost", host="evil.example"),
        head(host=""),
        head(host="a b"),
        head(host="127.0.0.1/x"),
        b"GET /api/v1/healthz HTTP/1.0\r\n\r\n",
        b"GET /api/v1/healthz\r\n\r\n",
        b"GET /api/v1/healthz HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n",
        head("GET /api/v1/training_runs", ANN, ANN),
        head("GET /api/v1/training_runs", ANN, "X-API-Key: tml-of-bob"),
    ],
)
def test_an_ambiguous_request_is_refused(network: Network, request_: bytes) -> None:
    with network.connect() as client:
        client.send(request_)

        answer = client.answer()

    assert answer.status == 400
    assert answer.detail


def test_with_keys_any_name_will_do(network: Network) -> None:
    with network.connect() as client:
        client.send(head("GET /api/v1/training_runs", ANN, "Origin: https://elsewhere.example", host="train.example:9"))

        assert client.answer().status == 200


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("keyless"), keys={}) as network:
        yield network


@pytest.mark.parametrize("path", ["healthz", "training_runs", "downloads/a/b", "../../metrics", "../../openapi.json"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]",
        "0.0.0.0",
    ],
)
def test_without_keys_a_foreign_name_is_misdirected(keyless: Network, host: str, path: str) -> None:
    with keyless.connect() as page:
        target = f"/api/v1/{path}".replace("/api/v1/../..", "")
        page.send(head(f"GET {target}", "X-API-Key: tml-any", host=host))

        answer = page.answer()

    assert answer.status == 421
    assert "chockstone keys create" in answer.detail


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.8.7:80", "[::1]", "[::1]:8000"])
def test_without_keys_loopback_names_are_answered(keyless: Network, host: str) -> None:
    with keyless.connect() as client:
        client.send(head("GET /api/v1/training_runs", "X-API-Key: tml-any", "Origin: http://localhost:3000", host=host))

        assert client.answer().status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://[", "x"])
def test_without_keys_a_foreign_page_is_refused(keyless: Network, origin: str) -> None:
    with keyless.connect() as page:
        page.send(head("DELETE /api/v1/training_runs/x", "X-API-Key: tml-any", f"Origin: {origin}"))

        assert page.answer().status == 403


def test_refused_keys_are_logged_and_audited_once_and_never_shown(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Network(tmp_path_factory.mktemp("guessed")) as network:
        network.context.config = replace(network.context.config, admins=frozenset({"root"}))
        with network.http("tml-guessed-by-someone") as http:
            assert {http.get("training_runs").status_code for _ in range(50)} == {401}
        with network.http(KEYS["root"]) as root, network.http(KEYS["ann"]) as ann:
            seen = [entry for entry in root.get("audit").json()["entries"] if entry["event"] == "key_refused"]
            assert ann.get("audit").json()["entries"] == []

    assert [(entry["event_details"]["client"], entry["event_details"]["count"]) for entry in seen] == [("127.0.0.1", 1)]
    said = [record.getMessage() for record in caplog.records if "key refused" in record.getMessage()]
    assert len(said) == 1
    assert "guessed-by" not in caplog.text + str(seen)


def _is_ended(sock: socket.socket) -> bool:
    """Of a connection on which nothing was asked."""
    return bool(select.select([sock], [], [], 0)[0])


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
