from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.catalog import Catalog
from chockstone.engine.engine import Engine

from .fake_backend import FakeBackend
from .making import NOW


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    async with await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3") as catalog:
        await catalog.sessions.create("s", owner="local", sdk_version="0.36.0", now=NOW)
        yield catalog


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def engine(backend: FakeBackend, catalog: Catalog) -> AsyncIterator[Engine]:
    engine = Engine(backend, catalog, now=lambda: NOW)
    await engine.start()
    yield engine
    backend.let_everything_go()
    await engine.stop()
