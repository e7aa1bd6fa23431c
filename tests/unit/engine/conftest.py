from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from chockstone.catalog import Catalog
from chockstone.checkpoints import Store, open_store
from chockstone.engine.config import StorageRules
from chockstone.engine.engine import Engine
from chockstone.engine.storage.archive_storage import ArchiveStorage
from support.engine.fake_backend import FakeBackend
from support.engine.making import NOW, Start, started
from support.postgres import catalog_url


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    async with await Catalog.open(catalog_url(tmp_path)) as catalog:
        await catalog.sessions.create("s", owner="local", sdk_version="0.36.0", now=NOW)
        yield catalog


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "checkpoints")


@pytest.fixture
def storage(store: Store) -> Iterator[ArchiveStorage]:
    storage = ArchiveStorage(store)
    yield storage
    storage.close()


@pytest.fixture
def backend(store: Store) -> FakeBackend:
    return FakeBackend(store)


@pytest.fixture
async def engine(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> AsyncIterator[Engine]:
    engine = Engine(backend, catalog, storage, data=tmp_path, rules=StorageRules(reserve_bytes=0), now=lambda: NOW)
    await engine.start()
    yield engine
    backend.let_everything_go()
    await engine.stop()


@pytest.fixture
async def start(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> AsyncIterator[Start]:
    """Starts an engine that is not like the others; it is stopped at the end."""
    async with AsyncExitStack() as engines:

        async def start(**facts: Any) -> Engine:
            return await engines.enter_async_context(started(backend, catalog, storage, **facts))

        yield start


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a server's first life."""
    return tmp_path / "life"
