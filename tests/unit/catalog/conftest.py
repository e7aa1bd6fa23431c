"""Every test of the catalog runs on a SQLite file, and on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest

from chockstone.catalog import Catalog
from chockstone.catalog import schema as tables
from support.postgres import shared_postgres


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(database: str, tmp_path: Path) -> str:
    """Of an empty database."""
    return f"sqlite:///{tmp_path}/catalog.sqlite3" if database == "sqlite" else shared_postgres().create_schema()


@pytest.fixture
async def catalog(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Catalog]:
    """At ``url``, where a test asks for that, too."""
    if database == "sqlite" or "url" in request.fixturenames:
        async with await Catalog.open(request.getfixturevalue("url")) as catalog:
            yield catalog
        return
    async with await Catalog.open(_used_again()) as catalog:
        yield catalog
        await catalog._database.write(*(table.delete() for table in reversed(tables.metadata.sorted_tables)))


@cache
def _used_again() -> str:
    """Tables take longer to make than most tests do."""
    return shared_postgres().create_schema()
