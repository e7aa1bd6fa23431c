"""The doctor, where the catalog is on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import Catalog, CatalogInUse, CatalogUnavailable
from chockstone.engine.doctor.repairs import AllowedRepairs
from chockstone.engine.doctor.visit import NoCatalog
from chockstone.engine.ownership.catalog_claim import CatalogRefused, take_catalog
from support.engine.damaged_data_dirs import NOON, DamagedDataDir
from support.postgres import shared_postgres

REBUILD = AllowedRepairs(may_repair=False, may_create=True)


@pytest.fixture
def patient(tmp_path: Path) -> DamagedDataDir:
    return DamagedDataDir(tmp_path / "data", shared_postgres().create_schema())


async def test_what_is_wrong_is_found_and_repaired(patient: DamagedDataDir) -> None:
    lost = await patient.saved("lost")
    await patient.saved("well", seq_id=2)
    patient.described("found", seq_id=3)
    patient.file(lost.archive).unlink()

    looked = await patient.looked_at()
    repaired = await patient.treated()

    assert sorted(each.kind.value for each in looked.examination.problems) == ["missing", "orphan"]
    assert repaired.examination.problems == ()
    assert sorted(await patient.rows()) == ["found", "well"]
    assert not patient.database.exists()


async def test_a_catalog_is_made_from_the_store_of_a_server_that_had_another(patient: DamagedDataDir) -> None:
    before = DamagedDataDir(patient.data)  # its catalog was a file
    before.url = None
    saved = {name: await before.saved(name, seq_id=number) for number, name in enumerate(("a", "b"))}

    with pytest.raises(NoCatalog, match="there is no catalog 'postgresql://chockstone:\\*\\*\\*@"):
        await patient.treated()
    assert not (await patient.looked_at()).has_catalog
    rebuilt = await patient.treated(REBUILD)

    before.url = None
    with pytest.raises(CatalogRefused, match="give that with --database"):
        await before.looked_at()
    with pytest.raises(CatalogRefused, match="give that with --database"):
        await before.treated(REBUILD)  # of what is there no more

    assert rebuilt.made_catalog and rebuilt.examination.findings == ()
    assert {name: row.archive for name, row in (await patient.rows()).items()} == {
        name: row.archive for name, row in saved.items()
    }


async def test_a_catalog_that_an_engine_runs_on_is_looked_at_and_not_treated(
    patient: DamagedDataDir, tmp_path: Path
) -> None:
    await patient.saved("a")
    assert patient.url is not None
    (tmp_path / "other").mkdir()
    async with await Catalog.open(patient.url) as catalog:
        lock = await take_catalog(catalog, tmp_path / "other", now=NOON)

        assert (await patient.looked_at()).examination.problems == ()
        with pytest.raises(CatalogInUse):
            await patient.treated(REBUILD)
        await lock.release()

    with pytest.raises(CatalogRefused, match="belongs to the data directory"):
        await patient.treated()
    await patient.treated(REBUILD)  # takes it over
    await patient.treated()


async def test_looking_does_not_bring_a_catalog_up_to_date(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    assert patient.url is not None
    shared_postgres().sql("UPDATE alembic_version SET version_num = '0003'", database=patient.url)

    with pytest.raises(CatalogUnavailable, match="of an older version"):
        await patient.looked_at()
