"""Downloading: a large archive by its signed URL, beside a bare sendfile loop that serves the same file.

One client fetches from both: it reads into one buffer and looks at nothing, so that the serving side is
what is measured. The file is in the page cache for both.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows
from benchmarks.lifecycle.filling import enter_archive, write_archive
from benchmarks.lifecycle.memory_watch import MemoryWatch
from benchmarks.lifecycle.setup import Setup
from benchmarks.live.server import KEY, connect

OURS = "chockstone, signed URL"
BARE = "bare sendfile loop"
BUFFER_BYTES = 1 << 20


def measure_download(context: Context, setup: Setup) -> Rows:
    context.describe(f"one archive of {setup.scale.archive_bytes / 1e6:,.0f} MB, in the page cache")
    archive = "download.train.0/weights/step-0"
    context.say("writing the archive")
    file = write_archive(setup, setup.scale.archive_bytes, name=archive)
    path = enter_archive(setup, archive, session_id="download")
    size = file.stat().st_size
    url = signed_url(setup.server.url, path)
    with file.open("rb") as stored:
        expected = hashlib.file_digest(stored, "sha256").digest()
    received = hashlib.sha256()
    for piece in fetch(url):
        received.update(piece)
    if received.digest() != expected:
        raise RuntimeError("the download is not the file")
    with RemoteObject("benchmarks.lifecycle.sendfile_loop", "SendfileLoop", path=str(file)) as bare:
        bare_url = f"http://127.0.0.1:{bare.call('port')}/"
        rows = context.run_rounds(
            {BARE: partial(_timed, bare_url, size), OURS: partial(_watched, setup, url, size)},
            repeats=setup.scale.downloads,
        )
    file.unlink()
    return rows


def signed_url(base: str, path: str) -> str:
    run_id, kind, name = path.removeprefix("tinker://").split("/")
    connection = connect(base)
    connection.request(
        "GET", f"/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}/archive", headers={"X-API-Key": KEY}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 302:
        raise RuntimeError(f"no URL for {path}: {answer.status} {body[:200]!r}")
    return str(answer.headers["location"])


def fetch(url: str) -> Iterator[memoryview]:
    """The body in pieces, each overwritten by the next."""
    address = urlsplit(url)
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            count = connection.recv_into(buffer)
            if count == 0:
                raise RuntimeError(f"{url} broke off: {head!r}")
            head += buffer[:count]
        head, _, begun = head.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"{url} answers {head!r}")
        yield memoryview(begun)
        while count := connection.recv_into(buffer):
            yield buffer[:count]


def _timed(url: str, size: int) -> Metrics:
    began = time.perf_counter()
    received = sum(len(piece) for piece in fetch(url))
    seconds = time.perf_counter() - began
    if received != size:
        raise RuntimeError(f"{received} of {size} bytes came from {url}")
    return {"bytes_per_second": size / seconds}


def _watched(setup: Setup, url: str, size: int) -> Metrics:
    with MemoryWatch(setup.server) as watch:
        metrics = _timed(url, size)
    return metrics | {"memory": watch.grown_bytes / size, "grown_bytes": watch.grown_bytes}
