"""Worlds for the fault table: each test runs in a directory and on loopback S3, unless it asks for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from harness import FileWorld, S3World, World

from chockstone.checkpoints.resume.attempts import places
from chockstone.checkpoints.stores.object_store import connect
from support.loopback_s3 import Proxy, faulty_proxy, make_bucket, s3_server, set_environment

BUCKET = "chains"
_prefixes = (f"test-{number}" for number in count())


@pytest.fixture(scope="session")
def shared_proxy() -> Iterator[Proxy]:
    with s3_server() as url:
        make_bucket(url, BUCKET)
        with faulty_proxy(url) as proxy:
            yield proxy


_connect = cache(connect)  # making a client takes far longer than all that a test does with it


@pytest.fixture
def s3_world(shared_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3World]:
    set_environment(monkeypatch, shared_proxy.url)
    monkeypatch.setattr(places, "connect", _connect)
    yield S3World(monkeypatch, shared_proxy, BUCKET, next(_prefixes))
    shared_proxy.heal()


@pytest.fixture
def file_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileWorld:
    folder = tmp_path / "world"
    folder.mkdir()
    return FileWorld(monkeypatch, folder)


@pytest.fixture(params=["file", "s3"])
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue(f"{request.param}_world")
    return found
