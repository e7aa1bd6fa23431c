"""Every test runs on a SQLite file; and on PostgreSQL too where CHOCKSTONE_TEST_POSTGRES is the URL of a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from chockstone.catalog import Catalog

POSTGRES = os.environ.get("CHOCKSTONE_TEST_POSTGRES")


@pytest.fixture(params=["sqlite", "postgres"] if POSTGRES else ["sqlite"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path}/catalog.sqlite3"
        return
    import asyncpg

    name = f"catalog_{uuid.uuid4().hex}"
    server = await asyncpg.connect(POSTGRES)
    await server.execute(f"CREATE DATABASE {name}")
    yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await server.close()


@pytest.fixture
async def catalog(url: str) -> AsyncIterator[Catalog]:
    async with await Catalog.open(url) as catalog:
        yield catalog
