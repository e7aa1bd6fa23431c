from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from chockstone.checkpoints.saving import writer
from chockstone.checkpoints.stores.bucket import Bucket
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.object_store import ObjectStore
from chockstone.checkpoints.stores.store import Store
from support.checkpoints.file_archives import MIB
from support.loopback_s3 import make_bucket, s3_server, set_environment

_prefixes = (f"test-{number}" for number in count())


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one block, so that files of a few megabytes are many of them."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", MIB)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server() as url, pytest.MonkeyPatch.context() as monkeypatch:
        make_bucket(url, "files")
        set_environment(monkeypatch, url)
        yield ObjectStore.from_url("s3://files")._bucket


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        return FileStore(tmp_path / "store")
    return ObjectStore(request.getfixturevalue("bucket"), next(_prefixes))
