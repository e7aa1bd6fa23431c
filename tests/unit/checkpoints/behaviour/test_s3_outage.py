"""S3 that is out of order for a while, requests that sit it out, and URLs that it honours without credentials."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest

from chockstone.checkpoints.errors import CheckpointExists, StoreDenied, StoreUnreachable
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores import s3_connection
from chockstone.checkpoints.stores.bucket import RetryPolicy
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.s3_bucket import S3Bucket
from chockstone.checkpoints.stores.s3_connection import S3Connection
from chockstone.checkpoints.stores.s3_upload import PART_BYTES
from support.loopback_s3 import Fault, Kind, Proxy, faulty_proxy, make_bucket, s3_server, set_environment

BUCKET = "patience"
SMALL, LARGE = 4 * PAGE, PART_BYTES + PAGE
OUT = [Fault(Kind.STATUS, 503, "SlowDown"), Fault(Kind.STATUS, 500, "InternalError"), Fault(Kind.RESET)]
_prefixes = (f"test-{number}" for number in count())


@pytest.fixture(scope="module")
def shared_proxy() -> Iterator[Proxy]:
    with s3_server() as url, faulty_proxy(url) as proxy, pytest.MonkeyPatch.context() as monkeypatch:
        make_bucket(url, BUCKET)
        set_environment(monkeypatch, proxy.url)
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    yield shared_proxy
    shared_proxy.heal()


@pytest.fixture(scope="module")
def connection(shared_proxy: Proxy) -> S3Connection:
    return S3Connection.connect(BUCKET, retry_policy=RetryPolicy(attempts=1, outage_seconds=60.0))


@pytest.fixture
def store(connection: S3Connection) -> ObjectStore:
    return ObjectStore(S3Bucket(connection), next(_prefixes))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> list[float]:
    """How long each wait for S3 was to be; it is in order again when the third is over. The clock goes with them."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            proxy.heal()

    monkeypatch.setattr(s3_connection, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(slept)))
    return slept


def save(store: ObjectStore, name: str, size: int = SMALL, *, overwrite: bool = False) -> None:
    sink = store.begin(name, size)
    try:
        sink.write_at(0, memoryview(b"x" * size))
        sink.commit(overwrite=overwrite)
    finally:
        sink.abort()


@pytest.mark.parametrize("fault", OUT, ids=["503", "500", "reset"])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_a_save_sits_an_outage_out(
    store: ObjectStore,
    proxy: Proxy,
    pauses: list[float],
    fault: Fault,
    size: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for method in ("PUT", "POST"):
        proxy.inject(fault, method=method)

    with caplog.at_level(logging.WARNING):
        save(store, "kept", size)

    assert pauses == [1.0, 2.0, 4.0]
    assert store.stat("kept").size == size
    assert [record.message.partition(" url=")[0] for record in caplog.records] == ["store out of order"]


def test_a_commit_whose_answer_is_lost_is_known_again(store: ObjectStore, proxy: Proxy, pauses: list[float]) -> None:
    proxy.inject(Fault(Kind.LOST_ANSWER), method="PUT", times=1)

    save(store, "kept")

    assert pauses == [1.0]
    with pytest.raises(CheckpointExists):
        save(store, "kept")


def test_patience_ends(store: ObjectStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(s3_connection, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    for method in ("PUT", "HEAD"):
        proxy.inject(OUT[0], method=method)

    with pytest.raises(StoreUnreachable):
        save(store, "lost")

    assert 50 < sum(slept) <= 60


def test_a_refusal_is_no_outage(store: ObjectStore, proxy: Proxy, pauses: list[float]) -> None:
    proxy.inject(Fault(Kind.STATUS, 403, "AccessDenied"), method="PUT")

    with pytest.raises(StoreDenied):
        save(store, "denied")

    assert pauses == []


def test_giving_up_does_not_wait(store: ObjectStore, proxy: Proxy, pauses: list[float]) -> None:
    sink = store.begin("given-up", LARGE)
    proxy.inject(OUT[0], method="DELETE")

    sink.abort()

    assert pauses == []


def test_an_object_is_lent_to_whoever_has_the_url(store: ObjectStore) -> None:
    save(store, "run/lent")

    def lend(method: str) -> str:
        url = store.presign(
            "run/lent", method=method, seconds=60, filename="lent.tar", content_type="application/x-tar"
        )
        assert url is not None
        assert "X-Amz-Expires=60" in url
        return url

    with urlopen(lend("GET"), timeout=60) as answer:
        assert answer.read() == b"x" * SMALL
        assert answer.headers["content-type"] == "application/x-tar"
        assert answer.headers["content-disposition"] == 'attachment; filename="lent.tar"'
    with urlopen(Request(lend("HEAD"), method="HEAD"), timeout=60) as answer:
        assert int(answer.headers["content-length"]) == SMALL


def test_a_note_stands_beside_the_archives_and_is_replaced_only_on_demand(store: ObjectStore) -> None:
    assert store.read_note("server.json", limit=100) is None

    store.write_note("server.json", b"first")

    with pytest.raises(CheckpointExists):
        store.write_note("server.json", b"second")
    assert store.read_note("server.json", limit=100) == b"first"
    assert store.read_note("server.json", limit=3) == b"fir"
    assert list(store.entries()) == []

    store.write_note("server.json", b"third", overwrite=True)

    assert store.read_note("server.json", limit=100) == b"third"
