from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import Catalog
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.engine.ownership.catalog_claim import CatalogRefused
from chockstone.engine.ownership.lost_catalog import refuse_new_catalog
from support.engine.making import NOW


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """With one archive, as its names tell."""
    store = FileStore(tmp_path / "checkpoints")
    place = tmp_path / "checkpoints" / "run" / "weights" / "kept.tar"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"\0" * 4096)
    assert [entry.name for entry in store.entries()] == ["run/weights/kept"]
    return store


async def reach(tmp_path: Path) -> Catalog:
    return await Catalog.reach(f"sqlite:///{tmp_path / 'catalog.sqlite3'}")


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_a_new_catalog_beside_archives_is_refused_and_not_made(
    tmp_path: Path, store: FileStore, is_elsewhere: bool
) -> None:
    async with await reach(tmp_path) as catalog:
        with pytest.raises(CatalogRefused, match="doctor --rebuild") as refusal:
            await refuse_new_catalog(catalog, store, data=tmp_path, is_elsewhere=is_elsewhere)

    assert ("with the same --database" in str(refusal.value)) == is_elsewhere
    assert not (tmp_path / "catalog.sqlite3").exists()


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_a_first_start_is_none_of_that(tmp_path: Path, is_elsewhere: bool) -> None:
    async with await reach(tmp_path) as catalog:
        store = FileStore(tmp_path / "checkpoints")
        await refuse_new_catalog(catalog, store, data=tmp_path, is_elsewhere=is_elsewhere)


async def test_a_catalog_elsewhere_that_only_has_keys_is_new(tmp_path: Path, store: FileStore) -> None:
    async with await reach(tmp_path) as catalog:
        await catalog.bring_up_to_date()
        await catalog.keys.add("ann", "d" * 64, hint="abcd", now=NOW)
        with pytest.raises(CatalogRefused, match="is new, but the store"):
            await refuse_new_catalog(catalog, store, data=tmp_path, is_elsewhere=True)

        await catalog.engine.bind("e" * 32, host="here", data="/data", now=NOW)  # as a rebuild does
        await refuse_new_catalog(catalog, store, data=tmp_path, is_elsewhere=True)


async def test_a_catalog_elsewhere_that_has_sessions_is_not_new(tmp_path: Path, store: FileStore) -> None:
    async with await reach(tmp_path) as catalog:
        await catalog.bring_up_to_date()
        await catalog.users.ensure("ann", now=NOW)
        await catalog.sessions.create("s", owner="ann", sdk_version="0", now=NOW)
        await refuse_new_catalog(catalog, store, data=tmp_path, is_elsewhere=True)
