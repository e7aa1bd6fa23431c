"""Downloads by signed URLs: the right bytes and headers, whatever happens to the checkpoint."""

from __future__ import annotations

import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.api.download_server import FILES, NOW, DownloadServer, open_descriptors, wait_until

LARGE = 16 << 20  # more than sockets buffer, so that a client can stand in the middle of it


def test_an_archive_is_sent_as_it_is_stored(server: DownloadServer) -> None:
    row = server.save("step-1")

    answer, body = server.ask(server.url(row))

    stored = server.file(row).read_bytes()
    assert answer.status == 200
    assert body == stored
    assert int(answer.headers["content-length"]) == len(stored)
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-disposition"] == 'attachment; filename="step-1.tar"'
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-content-type-options"] == "nosniff"
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert set(FILES) <= set(tar.getnames())


@pytest.mark.parametrize(
    ("member", "content_type", "filename"),
    [
        ("adapter_config.json", "application/json", "adapter_config.json"),
        ("notes/README.md", "text/markdown; charset=utf-8", "README.md"),
        ("checkpoint_complete", "application/octet-stream", "checkpoint_complete"),
    ],
)
def test_a_file_in_an_archive_is_sent_alone(
    server: DownloadServer, member: str, content_type: str, filename: str
) -> None:
    row = server.save("step-1")

    answer, body = server.ask(server.url(row, member))

    assert (answer.status, body) == (200, FILES[member])
    assert int(answer.headers["content-length"]) == len(FILES[member])
    assert answer.headers["content-type"] == content_type
    assert answer.headers["content-disposition"] == f'attachment; filename="{filename}"'


def test_a_tensor_file_is_sent_alone(server: DownloadServer) -> None:
    row = server.save("step-1", size_bytes=3_000_001)
    with tarfile.open(server.file(row)) as tar:
        [member] = [name for name in tar.getnames() if name.endswith(".safetensors")]
        extracted = tar.extractfile(member)
        assert extracted is not None
        stored = extracted.read()

    _, body = server.ask(server.url(row, member))

    assert body == stored


def test_head_says_what_get_would_without_a_body(server: DownloadServer) -> None:
    url = server.url(server.save("step-1"))

    head, nothing = server.ask(url, "HEAD", Range="bytes=5-9")
    answer, _ = server.ask(url)

    assert (head.status, nothing) == (200, b"")
    volatile = {"date"}
    assert {k: v for k, v in head.getheaders() if k not in volatile} == {
        k: v for k, v in answer.getheaders() if k not in volatile
    }


@pytest.mark.parametrize("member", [None, "adapter_config.json"])
@pytest.mark.parametrize("asked", ["bytes=2-4", "bytes=3-", "bytes=-3", "bytes=0-0"])
def test_a_range_is_a_part_of_the_whole(server: DownloadServer, member: str | None, asked: str) -> None:
    url = server.url(server.save("step-1"), member)
    _, whole = server.ask(url)

    answer, body = server.ask(url, Range=asked)

    first, _, last = asked.removeprefix("bytes=").partition("-")
    expected = whole[-int(last) :] if not first else whole[int(first) : int(last) + 1 if last else None]
    start = len(whole) - len(expected) if not first else int(first)
    assert (answer.status, body) == (206, expected)
    assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/{len(whole)}"
    assert int(answer.headers["content-length"]) == len(expected)


def test_a_range_behind_the_end_is_refused_with_the_size(server: DownloadServer) -> None:
    row = server.save("step-1")
    size = server.file(row).stat().st_size

    answer, body = server.ask(server.url(row), Range=f"bytes={size}-")

    assert answer.status == 416
    assert answer.headers["content-range"] == f"bytes */{size}"
    assert str(size) in json.loads(body)["detail"]


def test_several_ranges_get_the_whole(server: DownloadServer) -> None:
    row = server.save("step-1")

    answer, body = server.ask(server.url(row), Range="bytes=0-1,5-6")

    assert (answer.status, body) == (200, server.file(row).read_bytes())


def test_a_resumed_download_is_the_same_bytes(server: DownloadServer) -> None:
    row = server.save("large", size_bytes=LARGE)
    client = server.begin(server.url(row))
    begun = bytearray()
    while len(begun) < 1_000_000:
        begun += client.recv(65536)
    client.close()
    header, _, begun = begun.partition(b"\r\n\r\n")
    etag = next(line for line in header.decode().split("\r\n") if line.lower().startswith("etag")).partition(": ")[2]

    answer, rest = server.ask(server.url(row), Range=f"bytes={len(begun)}-", **{"If-Range": etag})

    assert answer.status == 206
    assert begun + rest == server.file(row).read_bytes()


def test_a_version_of_an_archive_has_one_etag_and_each_part_another(server: DownloadServer) -> None:
    one, two = server.save("one"), server.save("three")

    tags = [
        server.ask(server.url(row, member), "HEAD")[0].headers["etag"]
        for row in (one, one, two)
        for member in (None, "adapter_config.json", "notes/README.md")
    ]

    assert tags[:3] == tags[3:6]
    assert len(set(tags)) == 6
    assert all(tag.startswith('"') for tag in tags), "strong ones"


def test_what_the_client_has_is_not_sent_again(server: DownloadServer) -> None:
    url = server.url(server.save("step-1"))
    etag = server.ask(url, "HEAD")[0].headers["etag"]

    answer, body = server.ask(url, **{"If-None-Match": etag, "Range": "bytes=0-1"})
    other, _ = server.ask(url, **{"If-None-Match": '"other"'})

    assert (answer.status, body) == (304, b"")
    assert answer.headers["etag"] == etag
    assert other.status == 200


def test_a_connection_is_used_again_after_every_kind_of_answer(server: DownloadServer) -> None:
    row = server.save("step-1", size_bytes=3_000_000)
    path = urlsplit(server.url(row)).path
    connection = server.connect()
    connection.connect()
    first = connection.sock
    expected = server.file(row).read_bytes()
    etag = server.ask(path, "HEAD")[0].headers["etag"]
    asked = [
        ("GET", {}, 200, expected),
        ("GET", {"Range": "bytes=10-99"}, 206, expected[10:100]),
        ("HEAD", {}, 200, b""),
        ("GET", {"If-None-Match": etag}, 304, b""),
        ("GET", {"Range": f"bytes={len(expected)}-"}, 416, None),
        ("GET", {}, 200, expected),
    ]

    for method, headers, status, body in asked:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == status
        assert body is None or content == body

    assert connection.sock is first
    connection.close()


def test_pipelined_requests_are_answered_in_order(server: DownloadServer) -> None:
    row = server.save("step-1", size_bytes=3_000_000)
    path = urlsplit(server.url(row)).path
    client = server.connect()
    client.connect()
    request = f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"
    last = f"GET {path} HTTP/1.1\r\nHost: here\r\nRange: bytes=0-9\r\nConnection: close\r\n\r\n"

    client.sock.sendall((request + last).encode())
    received = bytearray()
    while more := client.sock.recv(1 << 20):
        received += more
    client.close()

    stored = server.file(row).read_bytes()
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert rest[: len(stored)] == stored
    head, _, rest = rest[len(stored) :].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 206 ")
    assert rest == stored[:10]


def test_many_at_once_are_each_exact(server: DownloadServer) -> None:
    row = server.save("step-1", size_bytes=5_000_000)
    url = server.url(row)
    stored = server.file(row).read_bytes()

    def fetch(number: int) -> bool:
        _, body = server.ask(url, Range=f"bytes={number * 1000}-")
        return body == stored[number * 1000 :]

    with ThreadPoolExecutor(16) as clients:
        assert all(clients.map(fetch, range(64)))
    wait_until(lambda: open_descriptors(server.file(row)) == 0)


def test_a_delete_meanwhile_lets_the_download_finish(server: DownloadServer) -> None:
    row = server.save("going", size_bytes=LARGE)
    url, path = server.url(row), server.file(row)
    stored = path.read_bytes()
    client = server.begin(url)
    received = bytearray(client.recv(4096))

    server.delete(row)
    assert not path.exists()
    after, body = server.ask(url)
    while more := client.recv(1 << 20):
        received += more
    client.close()

    assert received.partition(b"\r\n\r\n")[2] == stored
    assert after.status == 404
    assert "deleted" in json.loads(body)["detail"]
    wait_until(lambda: open_descriptors(path) == 0)


def test_an_overwrite_meanwhile_is_not_mixed_in(server: DownloadServer) -> None:
    row = server.save("changing", size_bytes=LARGE)
    url = server.url(row)
    old = server.file(row).read_bytes()
    client = server.begin(url)
    received = bytearray(client.recv(4096))

    other = server.save("another-one", size_bytes=LARGE)
    server.store.copy(other.archive, row.archive, overwrite=True)
    while more := client.recv(1 << 20):
        received += more
    client.close()

    assert received.partition(b"\r\n\r\n")[2] == old
    assert server.file(row).read_bytes() != old


def test_an_expired_checkpoint_is_not_there(server: DownloadServer) -> None:
    url = server.url(server.save("short", expires_at=NOW + timedelta(minutes=5)))

    before, _ = server.ask(url)
    server.now = NOW + timedelta(minutes=5)
    after, body = server.ask(url)

    assert before.status == 200
    assert (after.status, after.headers["content-type"]) == (404, "application/json")
    assert json.loads(body)["detail"]


def test_an_expired_url_says_so(server: DownloadServer) -> None:
    url = server.url(server.save("step-1"))

    server.now = NOW + timedelta(hours=1)
    answer, body = server.ask(url)

    assert answer.status == 410
    assert "expired" in json.loads(body)["detail"]


def test_a_changed_url_reaches_nothing(server: DownloadServer) -> None:
    row, other = server.save("one"), server.save("three")
    head, _, tail = server.url(row).partition("/downloads/")
    token, _, filename = tail.partition("/")
    other_token = server.url(other, "adapter_config.json").partition("/downloads/")[2].partition("/")[0]
    crossed = f"{other_token.rpartition('.')[0]}.{token.rpartition('.')[2]}"

    codes = {
        each: server.ask(f"{head}/downloads/{each}")[0].status
        for each in (
            f"{crossed}/{filename}",
            f"{token[:-1]}/{filename}",
            f"{token}=/{filename}",
            f"{token}%00/{filename}",
            f"x/{filename}",
            f"{other_token}/{filename}",
            f"{token}/three.tar",
            f"{token}/..%2f{filename}",
            f"{token}/",
            token,
        )
    }

    assert set(codes.values()) <= {403, 404}, codes


def test_a_file_that_is_not_in_the_archive_is_not_there(server: DownloadServer) -> None:
    row = server.save("step-1")

    answer, body = server.ask(server.url(row, "model.bin"))

    assert answer.status == 404
    assert "'model.bin'" in json.loads(body)["detail"]
    wait_until(lambda: open_descriptors(server.file(row)) == 0)


def test_an_archive_that_does_not_open_is_found_damaged(server: DownloadServer) -> None:
    row = server.save("step-1")
    with open(server.file(row), "r+b") as file:
        file.seek(5000)
        file.write(b"\0" * 100)
    url = server.url(row)

    answer, body = server.ask(url)
    again, _ = server.ask(url)

    assert answer.status == again.status == 400
    assert "is damaged" in json.loads(body)["detail"]
    marked = server.row(row)
    assert marked is not None and marked.state == "damaged"


def test_an_archive_that_is_gone_is_found_missing(server: DownloadServer) -> None:
    row = server.save("step-1")
    server.file(row).unlink()

    answer, body = server.ask(server.url(row))

    assert answer.status == 404
    assert "lost its archive" in json.loads(body)["detail"]
    marked = server.row(row)
    assert marked is not None and marked.state == "damaged"


def test_a_file_that_becomes_shorter_breaks_the_download_off(server: DownloadServer) -> None:
    row = server.save("cut", size_bytes=LARGE)
    path = server.file(row)
    client = server.begin(server.url(row))
    received = bytearray(client.recv(4096))

    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 4 * 3)
    size = 0
    while more := client.recv(1 << 20):
        size += len(more)
    client.close()

    assert len(received) + size < LARGE
    wait_until(lambda: open_descriptors(path) == 0)


@pytest.mark.parametrize("base", ["https://train.example.org", "https://example.org/chockstone/"])
def test_urls_are_those_of_the_proxy_in_front(tmp_path: Path, base: str) -> None:
    with DownloadServer(tmp_path, public_url=base) as server:
        url = server.url(server.save("step-1"))

    assert url.startswith(f"{base.rstrip('/')}/api/v1/downloads/")
    assert url.endswith("/step-1.tar")


def test_urls_keep_the_path_the_server_is_mounted_at(tmp_path: Path) -> None:
    with DownloadServer(tmp_path, root_path="/chockstone") as server:
        row = server.save("step-1")
        url = server.url(row)

        assert url.startswith(f"http://127.0.0.1:{server.port}/chockstone/api/v1/downloads/")
