from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.catalog import Catalog, CatalogInUse
from chockstone.engine.catalog_claim import CatalogRefused, take_catalog

from .making import NOW


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


async def test_an_id_that_is_none_is_not_taken_for_one(catalog: Catalog, data: Path) -> None:
    (data / "engine-id").write_text("x")

    with pytest.raises(CatalogRefused, match="remove it to have one made"):
        await take_catalog(catalog, data, now=NOW)
