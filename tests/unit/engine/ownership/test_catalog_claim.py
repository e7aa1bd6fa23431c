from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from chockstone.catalog import Catalog, CatalogInUse, CatalogNotReady
from chockstone.engine.ownership.catalog_claim import CatalogRefused, require_catalog_within, take_catalog
from support.engine.making import NOW


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    async with await Catalog.open(f"sqlite:///{tmp_path}/shared.sqlite3") as catalog:
        yield catalog


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return made(tmp_path / "data")


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def test_a_catalog_is_of_the_first_directory_that_comes(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    await (await take_catalog(catalog, data, now=NOW)).release()
    await (await take_catalog(catalog, data, now=NOW)).release()

    with pytest.raises(CatalogRefused, match=f"belongs to the data directory '{data}' of .*doctor --rebuild"):
        await take_catalog(catalog, made(tmp_path / "other"), now=NOW)
    await (await take_catalog(catalog, data, now=NOW)).release()  # the refused one has let go


async def test_two_engines_do_not_run_at_once(catalog: Catalog, data: Path) -> None:
    lock = await take_catalog(catalog, data, now=NOW)

    with pytest.raises(CatalogInUse):
        await take_catalog(catalog, data, now=NOW)
    await lock.release()


async def test_a_directory_that_moves_takes_its_catalog_along(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    await (await take_catalog(catalog, data, now=NOW)).release()
    moved = data.rename(tmp_path / "moved")

    await (await take_catalog(catalog, moved, now=NOW)).release()

    bound = await catalog.engine.get()
    assert bound is not None and bound.data == str(moved)


async def test_a_catalog_is_taken_over_when_that_is_asked_for(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    await (await take_catalog(catalog, data, now=NOW)).release()
    heir = made(tmp_path / "heir")

    await (await take_catalog(catalog, heir, now=NOW, may_adopt=True)).release()

    await (await take_catalog(catalog, heir, now=NOW)).release()
    with pytest.raises(CatalogRefused, match="heir"):
        await take_catalog(catalog, data, now=NOW)


async def test_a_directory_knows_where_its_catalog_is(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    require_catalog_within(data)
    await (await take_catalog(catalog, data, now=NOW)).release()

    with pytest.raises(CatalogRefused, match=f"is '{catalog.shown_url}': give that with --database.*remove '{data}/"):
        require_catalog_within(data)
    async with await Catalog.open(f"sqlite:///{tmp_path}/new.sqlite3") as empty:
        with pytest.raises(CatalogRefused, match=f"is '{catalog.shown_url}', and not '{empty.shown_url}'"):
            await take_catalog(empty, data, now=NOW)
        assert await empty.engine.get() is None


async def test_a_catalog_that_the_directory_had_before_is_refused(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    await (await take_catalog(catalog, data, now=NOW)).release()

    async with await Catalog.open(f"sqlite:///{tmp_path}/new.sqlite3") as new:
        await (await take_catalog(new, data, now=NOW, may_adopt=True)).release()
        await (await take_catalog(new, data, now=NOW)).release()
        with pytest.raises(CatalogRefused, match=f"is '{new.shown_url}', and not '{catalog.shown_url}'"):
            await take_catalog(catalog, data, now=NOW)
    (tmp_path / "new.sqlite3").rename(tmp_path / "renamed.sqlite3")
    async with await Catalog.open(f"sqlite:///{tmp_path}/renamed.sqlite3") as renamed:
        await (await take_catalog(renamed, data, now=NOW)).release()  # known by what is in it


async def test_a_catalog_that_comes_back_into_the_directory_needs_no_record(catalog: Catalog, data: Path) -> None:
    await (await take_catalog(catalog, data, now=NOW)).release()

    async with await Catalog.open(f"sqlite:///{data}/catalog.sqlite3") as within:
        with pytest.raises(CatalogRefused, match="and not"):
            await take_catalog(within, data, now=NOW)
        await (await take_catalog(within, data, now=NOW, may_adopt=True)).release()

    require_catalog_within(data)


async def test_a_catalog_that_is_refused_stays_of_its_version(catalog: Catalog, data: Path, tmp_path: Path) -> None:
    await (await take_catalog(catalog, data, now=NOW)).release()
    assert catalog.path is not None
    with closing(sqlite3.connect(catalog.path, isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0003'")

    async with await Catalog.reach(f"sqlite:///{catalog.path}") as reached:
        with pytest.raises(CatalogRefused, match="belongs to the data directory"):
            await take_catalog(reached, made(tmp_path / "other"), now=NOW)
        with pytest.raises(CatalogNotReady, match="'0003'"):
            await reached.bring_up_to_date(may_migrate=False)


@pytest.mark.parametrize("content", ["", "[]", '{"database": 1}'])
def test_a_record_that_says_nothing_is_not_passed_over(data: Path, content: str) -> None:
    (data / "catalog.json").write_text(content)

    with pytest.raises(CatalogRefused, match="does not say where the catalog"):
        require_catalog_within(data)


async def test_an_id_that_is_none_is_not_taken_for_one(catalog: Catalog, data: Path) -> None:
    (data / "engine-id").write_text("x")

    with pytest.raises(CatalogRefused, match="remove it to have one made"):
        await take_catalog(catalog, data, now=NOW)
