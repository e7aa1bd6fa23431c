from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import Catalog, CatalogNotReady
from support.catalog.making import NOW


async def test_a_catalog_that_was_only_reached_has_no_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.sqlite3"
    assert not await Catalog.exists(url)

    async with await Catalog.reach(url) as catalog:
        assert await catalog.is_new()
        assert await catalog.engine.get() is None
        await catalog.bring_up_to_date()
        assert not await catalog.is_new()
        await catalog.users.ensure("ann", now=NOW)

    assert await Catalog.exists(url)


async def test_looking_into_a_missing_catalog_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(CatalogNotReady, match="is no catalog"):
        await Catalog.look_into(f"sqlite:///{tmp_path}/catalog.sqlite3")

    assert list(tmp_path.iterdir()) == []


async def test_a_catalog_shows_its_file_and_no_password(tmp_path: Path) -> None:
    async with await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3") as catalog:
        assert catalog.path == tmp_path / "catalog.sqlite3"
        assert catalog.shown_url == f"sqlite:///{tmp_path}/catalog.sqlite3"
