"""Sending: clients that go, stall or are many cost no thread, little memory, and no open file for long."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from chockstone.api.downloads import archive_response
from chockstone.api.downloads.archive_response import ArchiveResponse
from chockstone.api.downloads.byte_ranges import ByteRange
from chockstone.checkpoints import Archive
from support.api.download_server import DownloadServer, open_descriptors, wait_until
from support.archives import BytesSource

LARGE = 16 << 20
SCOPE = {"type": "http", "method": "GET"}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def nobody_leaves() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_client_that_goes_away_ends_the_download(server: DownloadServer) -> None:
    row = server.save("large", size_bytes=LARGE)
    client = server.begin(server.url(row))
    client.recv(4096)
    wait_until(lambda: open_descriptors(server.file(row)) > 0)

    client.close()

    wait_until(lambda: open_descriptors(server.file(row)) == 0)


def test_a_client_that_stalls_and_then_goes_away_ends_the_download(server: DownloadServer) -> None:
    """The server waits for room when the client leaves."""
    row = server.save("large", size_bytes=LARGE)
    client = server.begin(server.url(row))
    wait_until(lambda: open_descriptors(server.file(row)) > 0)
    before = server.ask(server.url(row, "adapter_config.json"))[0].status

    client.close()

    assert before == 200
    wait_until(lambda: open_descriptors(server.file(row)) == 0)


def test_clients_that_stall_hold_up_nobody_and_little_memory(server: DownloadServer) -> None:
    row = server.save("large", size_bytes=LARGE)
    url = server.url(row)
    server.ask(url)
    memory = resident_bytes()

    stalled = [server.begin(url) for _ in range(40)]
    heads = [client.recv(100) for client in stalled]
    answers = [server.ask(url, Range=f"bytes={number}-") for number in range(5)]

    assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
    assert all(answer.status == 206 for answer, _ in answers)
    assert sum(thread.name.startswith("archive-read") for thread in threading.enumerate()) <= 4
    assert resident_bytes() - memory < 40 * 3 * (1 << 20) + 4 * LARGE
    for client in stalled:
        client.close()
    wait_until(lambda: open_descriptors(server.file(row)) == 0)


def test_a_stop_does_not_wait_for_a_client_that_stalls(tmp_path: Path) -> None:
    with DownloadServer(tmp_path) as server:
        row = server.save("large", size_bytes=LARGE)
        client = server.begin(server.url(row))
        client.recv(4096)

        server.stop()

    wait_until(lambda: open_descriptors(server.file(row)) == 0)
    client.close()


def test_a_large_download_takes_no_memory(server: DownloadServer) -> None:
    row = server.save("large", size_bytes=100 << 20)
    url = server.url(row)
    expected = hashlib.sha256(server.file(row).read_bytes()).digest()
    connection = server.connect()
    server.ask(url, Range="bytes=0-3000000")
    before = peak = resident_bytes()

    connection.request("GET", url.partition(str(server.port))[2])
    answer = connection.getresponse()
    digest = hashlib.sha256()
    while piece := answer.read(1 << 20):
        digest.update(piece)
        peak = max(peak, resident_bytes())
    connection.close()

    assert digest.digest() == expected
    assert peak - before < 32 << 20


async def test_a_client_that_takes_nothing_is_let_go() -> None:
    source = BytesSource(b"x" * 1_000_000)
    archive = bare_archive(source)
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    response = ArchiveResponse(archive, ByteRange(0, 1_000_000), status_code=200, headers={}, stall_seconds=0.05)
    await response(SCOPE, nobody_leaves, send)

    assert sent == ["http.response.start", "http.response.body"]
    await until(lambda: source.closed)


async def test_bytes_that_are_no_file_are_read_where_they_are() -> None:
    content = bytes(range(256)) * 20_000
    source = BytesSource(content)
    received = bytearray()

    async def send(message: Any) -> None:
        received.extend(message.get("body", b""))

    response = ArchiveResponse(bare_archive(source), ByteRange(7, 5_000_000), status_code=206, headers={})
    await response(SCOPE, nobody_leaves, send)

    assert received == content[7:5_000_007]
    assert response.headers["content-length"] == "5000000"
    await until(lambda: source.closed)


async def test_a_slow_client_gets_small_pieces_and_a_brisk_one_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[float, list[int]] = {}
    for brisk_seconds in (0.0, 60.0):  # nobody is brisk enough for the first, everybody for the second
        monkeypatch.setattr(archive_response, "_BRISK_SECONDS", brisk_seconds)
        sizes[brisk_seconds] = []

        async def send(message: Any, into: list[int] = sizes[brisk_seconds]) -> None:
            into.append(len(message.get("body", b"")))

        archive = bare_archive(BytesSource(bytes(4 << 20)))
        await ArchiveResponse(archive, ByteRange(0, 4 << 20), status_code=200, headers={})(SCOPE, nobody_leaves, send)

    assert max(sizes[0.0]) == 64 << 10
    assert max(sizes[60.0]) == 1 << 20


async def test_a_cancelled_download_closes_only_after_its_read() -> None:
    """Else the read would be of whatever file has the number next."""
    reading, go_on = threading.Event(), threading.Event()

    class Slow(BytesSource):
        def read_into(self, offset: int, target: memoryview) -> None:
            reading.set()
            assert go_on.wait(30)
            assert not self.closed
            super().read_into(offset, target)

    source = Slow(bytes(1_000_000))

    async def send(message: Any) -> None:
        pass

    response = ArchiveResponse(bare_archive(source), ByteRange(0, 1_000_000), status_code=200, headers={})
    sending_task = asyncio.create_task(response(SCOPE, nobody_leaves, send))
    await asyncio.to_thread(reading.wait, 30)
    sending_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending_task

    assert not source.closed
    go_on.set()
    await until(lambda: source.closed)
    assert source.reads == [(0, 1_000_000)], "the read ended before the close, and was the last"


def test_it_works_without_a_socket(server: DownloadServer) -> None:
    row = server.save("step-1", size_bytes=3_000_000)
    url = server.url(row)

    async def fetch() -> bytes:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app)) as client:
            return (await client.get(url)).content

    assert server.do(fetch()) == server.file(row).read_bytes()


def bare_archive(source: BytesSource) -> Archive:
    """Around bytes that are no archive: sending never looks at what they say."""
    archive = object.__new__(Archive)
    archive._source = source
    return archive


async def until(true: Any) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)
