from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

from chockstone.checkpoints.stores.bucket import RetryPolicy
from chockstone.checkpoints.stores.object_store import ObjectStore
from support.loopback_s3 import Proxy, faulty_proxy, make_bucket, s3_server, set_environment

if TYPE_CHECKING:
    from chockstone.checkpoints.stores.s3_connection import S3Connection

_prefixes = (f"test-{number}" for number in count())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from support.checkpoints.s3_stores import BUCKET

    with s3_server() as url:
        make_bucket(url, BUCKET)
        yield url


@pytest.fixture(scope="module")
def shared_proxy(server: str) -> Iterator[Proxy]:
    with faulty_proxy(server) as proxy, pytest.MonkeyPatch.context() as monkeypatch:
        set_environment(monkeypatch, proxy.url)
        yield proxy


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    yield shared_proxy
    shared_proxy.heal()


@pytest.fixture(scope="module")
def connection(shared_proxy: Proxy) -> S3Connection:
    from chockstone.checkpoints.stores.s3_connection import S3Connection
    from support.checkpoints.s3_stores import BUCKET

    return S3Connection.connect(BUCKET, retry_policy=RetryPolicy(attempts=2))


@pytest.fixture(scope="module")
def impatient(shared_proxy: Proxy) -> S3Connection:
    from chockstone.checkpoints.stores.s3_connection import S3Connection
    from support.checkpoints.s3_stores import BUCKET

    return S3Connection.connect(BUCKET, retry_policy=RetryPolicy(attempts=1, silence_seconds=0.5))


@pytest.fixture
def store(connection: S3Connection) -> ObjectStore:
    from chockstone.checkpoints.stores.s3_bucket import S3Bucket

    return ObjectStore(S3Bucket(connection), next(_prefixes))
