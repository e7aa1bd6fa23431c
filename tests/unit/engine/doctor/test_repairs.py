from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from chockstone.engine.doctor.findings import FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs
from chockstone.engine.doctor.visit import NoCatalog
from chockstone.engine.ownership.data_directory import DirectoryInUse, is_owned, owned
from chockstone.engine.storage.archive_names import ephemeral_name
from support.engine.damaged_data_dirs import NOON, RUN, SPEC, DamagedDataDir, later

PATH = f"tinker://{RUN}/weights"


@pytest.fixture
def patient(tmp_path: Path) -> DamagedDataDir:
    return DamagedDataDir(tmp_path / "data")


async def test_a_row_without_bytes_is_removed_and_the_audit_says_so(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    await patient.saved("b", seq_id=2)
    patient.file(row.archive).unlink()

    visit = await patient.treated()

    assert [repair.done for repair in visit.repairs] == ["removed from the catalog"]
    assert visit.examination.findings == ()
    assert list(await patient.rows()) == ["b"]
    async with patient.catalog() as catalog:
        [entry] = await catalog.audit.list("ann")
        assert await catalog.trash.list() == ()
    assert (entry.event, entry.path) == ("checkpoint_removed", f"{PATH}/a")
    assert entry.details["reason"] == "its archive is not in the store"


async def test_a_store_that_is_empty_as_an_unmounted_disk_costs_no_rows(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    shutil.rmtree(patient.store.root)
    patient.store.root.mkdir()

    visit = await patient.treated()

    assert "is its disk mounted?" in visit.repairs[0].failure
    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.MISSING]
    assert list(await patient.rows()) == ["a"]


async def test_damage_is_marked_with_its_reason_and_the_bytes_are_kept(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    patient.flip(row.archive)

    visit = await patient.treated(is_full=True)

    marked = (await patient.rows())["a"]
    assert marked.state == "damaged"
    assert "is not what was written" in (marked.damage or "")
    assert patient.file(row.archive).exists()
    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.KNOWN_DAMAGED]


async def test_damage_is_removed_when_that_is_asked_for(patient: DamagedDataDir) -> None:
    fresh, known = await patient.saved("a"), await patient.saved("b", seq_id=2)
    await patient.saved("c", seq_id=3)
    patient.behead(fresh.archive)
    patient.behead(known.archive)
    async with patient.catalog() as catalog:
        await catalog.checkpoints.mark_damaged(known.save_id, "too short")

    visit = await patient.treated(AllowedRepairs(remove_damaged=True))

    assert visit.examination.problems == ()
    assert sum(repair.freed_bytes for repair in visit.repairs) == fresh.size_bytes + known.size_bytes
    assert list(await patient.rows()) == ["c"]
    assert not patient.file(fresh.archive).exists() and not patient.file(known.archive).exists()


async def test_what_is_good_again_is_ready_again(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    async with patient.catalog() as catalog:
        await catalog.checkpoints.mark_damaged(row.save_id, "the disk was tired")

    visit = await patient.treated()

    assert visit.examination.findings == ()
    assert ((await patient.rows())["a"].state, (await patient.rows())["a"].damage) == ("ready", None)


async def test_a_full_reading_is_noted_for_the_scrub(patient: DamagedDataDir) -> None:
    await patient.saved("a")

    await patient.treated(is_full=True, at=later(5))

    assert (await patient.rows())["a"].verified_at == later(5)


async def test_a_size_is_corrected(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    async with patient.catalog() as catalog:
        await catalog.checkpoints.set_size(row.save_id, 5)

    visit = await patient.treated()

    assert visit.examination.findings == ()
    assert (await patient.rows())["a"] == row


async def test_a_stuck_save_whose_archive_is_whole_is_published(patient: DamagedDataDir) -> None:
    await patient.begun("a", archive=patient.described("a", 7))

    visit = await patient.treated()

    row = (await patient.rows())["a"]
    assert visit.examination.findings == ()
    assert row.state == "ready"
    assert row.size_bytes == patient.store.stat(row.archive).size
    assert patient.value(row.archive) == 7
    async with patient.catalog() as catalog:
        [use] = await catalog.usage.list("ann", start=NOON - timedelta(days=1), end=NOON + timedelta(days=1))
    assert (use.type, use.session_id, use.base_model, use.amount) == ("checkpoint", "s", "tiny", 1)


async def test_a_stuck_save_with_a_wrong_byte_is_given_up_and_its_archive_kept(patient: DamagedDataDir) -> None:
    archive = patient.described("a")
    await patient.begun("a", archive=archive)
    patient.flip(archive)

    visit = await patient.treated(AllowedRepairs(may_repair=True))

    assert visit.repairs[0].done == "given up"
    assert patient.file(archive).exists()


async def test_a_stuck_save_that_never_was_written_is_given_up_with_its_partial_file(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    await patient.begun("b", archive="s.train.0/weights/b.2")
    left = patient.store.root / ".partial" / "b-0123.tar"
    left.write_bytes(b"half")

    visit = await patient.treated()

    assert visit.examination.findings == ()
    assert list(await patient.rows()) == ["a"]
    assert not left.exists()


async def test_a_stuck_overwrite_that_is_whole_takes_the_place_of_the_old_one(patient: DamagedDataDir) -> None:
    old = await patient.saved("a", 1)
    await patient.begun("a", archive=patient.described("a", 2, seq_id=2), overwrite=True)

    visit = await patient.treated()

    assert visit.examination.findings == ()
    assert patient.value((await patient.rows())["a"].archive) == 2
    assert not patient.file(old.archive).exists()


async def test_a_replaced_archive_stays_while_a_sampler_of_a_living_session_uses_it(patient: DamagedDataDir) -> None:
    old = await patient.saved("a", 1)
    async with patient.catalog() as catalog:
        await catalog.samplers.create("s", 0, owner="ann", base_model="tiny", archive=old.archive, now=NOON)
    await patient.begun("a", archive=patient.described("a", 2, seq_id=2), overwrite=True)

    visit = await patient.treated()

    assert visit.examination.findings == ()
    assert patient.value(old.archive) == 1
    async with patient.catalog() as catalog:
        assert [each.archive for each in await catalog.trash.list()] == [old.archive]


async def test_overdue_trash_is_purged_and_other_trash_is_not(patient: DamagedDataDir) -> None:
    due, kept = await patient.saved("a"), await patient.saved("b", seq_id=2)
    await patient.discarded(due, purge_at=NOON)
    await patient.discarded(kept, purge_at=later(60))

    visit = await patient.treated()

    assert sum(repair.freed_bytes for repair in visit.repairs) == due.size_bytes
    assert not patient.file(due.archive).exists()
    assert patient.file(kept.archive).exists()
    async with patient.catalog() as catalog:
        assert (await catalog.trash.undelete((await catalog.trash.list())[0].trash_id, now=NOON)).name == "b"


async def test_an_orphan_is_adopted_by_the_run_it_names(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    archive = patient.described("b", 3, seq_id=2)

    visit = await patient.treated()

    row = (await patient.rows())["b"]
    assert visit.repairs[0].done == f"listed as {PATH}/b of ann"
    assert (row.archive, row.owner, row.state, row.step) == (archive, "ann", "ready", 3)
    assert visit.examination.findings == ()


async def test_an_orphan_whose_name_is_held_by_a_row_without_bytes_gets_it(patient: DamagedDataDir) -> None:
    lost = await patient.saved("a", 1)
    patient.file(lost.archive).unlink()
    archive = patient.described("a", 2, seq_id=2)

    visit = await patient.treated()

    assert visit.examination.problems == ()
    assert (await patient.rows())["a"].archive == archive


async def test_archives_that_cannot_be_listed_are_kept_unless_they_are_to_go(patient: DamagedDataDir) -> None:
    kept_row = await patient.saved("a", seq_id=2)
    rival = patient.described("a", seq_id=1)
    patient.archive("by-hand/step-1")

    kept = await patient.treated()
    gone = await patient.treated(AllowedRepairs(remove_orphans=True))

    assert kept.repairs == ()
    assert [finding.kind.value for finding in kept.examination.findings] == ["rival", "stray"]
    assert {repair.finding.subject for repair in gone.repairs} >= {rival, "by-hand/step-1"}
    assert gone.examination.findings == ()
    assert [entry.name for entry in patient.store.entries()] == [kept_row.archive]


async def test_only_weights_of_samplers_that_are_over_go(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    living, over = ephemeral_name("s:sample:0"), ephemeral_name("old:sample:0")
    patient.archive(living)
    patient.archive(over)

    await patient.treated()

    assert patient.file(living).exists()
    assert not patient.file(over).exists()


async def test_empty_directories_go_and_the_store_itself_stays(patient: DamagedDataDir) -> None:
    (patient.store.root / "old.train.0" / "weights").mkdir(parents=True)
    async with patient.catalog():
        pass

    visit = await patient.treated()

    assert visit.examination.findings == ()
    assert list(patient.store.root.iterdir()) == []


async def test_nothing_is_repaired_under_a_server(patient: DamagedDataDir) -> None:
    await patient.saved("a")

    with owned(patient.data):
        assert is_owned(patient.data)
        with pytest.raises(DirectoryInUse, match="a server uses the data directory"):
            await patient.treated()

    assert not is_owned(patient.data)


async def test_without_a_catalog_there_is_nothing_to_repair(patient: DamagedDataDir) -> None:
    patient.archive(ephemeral_name("s:sample:0"))

    with pytest.raises(NoCatalog, match="--rebuild"):
        await patient.treated()

    assert not await patient.has_catalog()
    assert len(list(patient.store.entries())) == 1


async def test_what_brings_runs_back_stays_and_what_is_left_of_others_goes(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    kept, kept_journal = patient.recovery(), patient.journal()
    patient.recovery("gone:train:0")
    over, over_journal = patient.recovery("over:train:0"), patient.journal("over:train:0")
    async with patient.catalog() as catalog:
        await catalog.sessions.rebuild("over", owner="ann", now=NOON)
        await catalog.runs.rebuild(
            "over:train:0", owner="ann", base_model="tiny", spec=SPEC, now=NOON, state="unloaded"
        )

    visit = await patient.treated()

    assert {repair.finding.kind.value for repair in visit.repairs} >= {"recovery", "journal"}
    assert not any(repair.failure for repair in visit.repairs)
    assert visit.examination.findings == ()
    assert (patient.file(kept).exists(), kept_journal.exists()) == (True, True)
    assert (patient.file(over).exists(), over_journal.exists()) == (False, False)
