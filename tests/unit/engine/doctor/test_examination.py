from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import RunState
from chockstone.engine.doctor.findings import FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs
from chockstone.engine.ownership.data_directory import RUN_JOURNALS, owned
from chockstone.engine.storage.archive_names import ephemeral_name
from support.engine.damaged_data_dirs import NOON, RUN, DamagedDataDir, later, write_journal

PATH = f"tinker://{RUN}/weights"


@pytest.fixture
def patient(tmp_path: Path) -> DamagedDataDir:
    return DamagedDataDir(tmp_path / "data")


async def test_a_server_that_ended_well_is_healthy(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    await patient.saved("b", seq_id=2)

    examination = await patient.examined(is_full=True)

    assert examination.findings == ()
    assert (examination.checkpoints, examination.archives) == (2, 2)
    assert examination.size_bytes == sum(row.size_bytes for row in (await patient.rows()).values())
    assert len(examination.verified) == 2


async def test_a_row_without_bytes_is_found(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    await patient.saved("b", seq_id=2)
    patient.file(row.archive).unlink()

    assert await patient.found() == [("missing", f"{PATH}/a")]


async def test_an_archive_that_ends_too_early_is_found_without_reading_it_all(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    patient.behead(row.archive)

    [finding] = (await patient.examined()).findings

    assert finding.kind is FindingKind.DAMAGED
    assert "bytes" in finding.detail


async def test_a_flipped_bit_is_found_by_a_full_reading_only(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    await patient.saved("b", seq_id=2)
    patient.flip(row.archive)

    assert await patient.found() == []
    examination = await patient.examined(is_full=True)

    assert [finding.key for finding in examination.findings] == [(FindingKind.DAMAGED, f"{PATH}/a")]
    assert "is not what was written" in examination.findings[0].detail
    assert row.save_id not in examination.verified


async def test_one_that_is_marked_as_damaged_is_read_in_full_every_time(patient: DamagedDataDir) -> None:
    bad, good = await patient.saved("a"), await patient.saved("b", seq_id=2)
    patient.flip(bad.archive)
    async with patient.catalog() as catalog:
        await catalog.checkpoints.mark_damaged(bad.save_id, "a flipped bit")
        await catalog.checkpoints.mark_damaged(good.save_id, "a flipped bit")

    assert await patient.found() == [("known_damaged", f"{PATH}/a"), ("healed", f"{PATH}/b")]


async def test_a_size_that_differs_is_found(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    async with patient.catalog() as catalog:
        await catalog.checkpoints.set_size(row.save_id, 5)

    [finding] = (await patient.examined()).findings

    assert finding.kind is FindingKind.MISSIZED
    assert f"says 5 bytes, and the archive has {row.size_bytes}" in finding.detail


async def test_a_save_without_an_end_is_stuck_only_if_no_server_is_at_work(patient: DamagedDataDir) -> None:
    await patient.begun("a", archive="x/weights/a.1")

    assert await patient.found() == [("stuck", f"{PATH}/a")]
    served = await patient.examined(is_served=True)

    assert served.findings == ()
    assert served.saves_under_way == 1


async def test_trash_is_overdue_when_its_time_has_come(patient: DamagedDataDir) -> None:
    await patient.discarded(await patient.saved("a"), purge_at=later(60))

    assert await patient.found(now=later(59)) == []
    assert await patient.found(now=later(60)) == [("overdue", f"{PATH}/a")]


async def test_trash_that_a_living_sampler_uses_is_not_overdue(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    async with patient.catalog() as catalog:
        await catalog.samplers.create("s", 0, owner="ann", base_model="tiny", archive=row.archive, now=NOON)
    await patient.discarded(row)

    assert await patient.found() == []
    async with patient.catalog() as catalog:
        await catalog.sessions.finish("s", reason="success", now=NOON)

    assert await patient.found() == [("overdue", f"{PATH}/a")]


async def test_trash_that_a_run_would_load_again_is_not_overdue(patient: DamagedDataDir) -> None:
    loaded, other, unknown = [await patient.saved(name, seq_id=n) for n, name in enumerate("abc", 1)]
    for row in (loaded, other):
        await patient.discarded(row)
    record = {"kind": "result", "of": 1, "facts": {"archive": loaded.archive}}
    await write_journal(patient.data / RUN_JOURNALS / "s.train.0", record, {"kind": "attempt", "of": 1})

    assert await patient.found() == [("overdue", f"{PATH}/b")]
    await patient.discarded(unknown)
    [segment] = (patient.data / RUN_JOURNALS / "s.train.0").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"facts", b"fakes"))
    assert await patient.found() == []  # nobody knows what it loaded


async def test_trash_without_bytes_is_found_before_somebody_restores_it(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    await patient.discarded(row, purge_at=later(60))
    patient.file(row.archive).unlink()

    assert await patient.found() == [("empty_trash", f"{PATH}/a")]


async def test_an_archive_that_describes_itself_is_told_from_one_that_does_not(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    orphan = patient.described("b", seq_id=2)
    patient.archive("by-hand/step-1")
    patient.archive("s.train.0/weights/c.3")

    findings = (await patient.examined()).findings

    assert [(each.kind.value, each.subject) for each in findings] == [
        ("orphan", orphan),
        ("stray", "by-hand/step-1"),
        ("stray", "s.train.0/weights/c.3"),
    ]
    assert findings[0].detail == f"{PATH}/b"
    assert "not saved through a server" in findings[2].detail


async def test_an_archive_whose_name_is_taken_is_a_rival(patient: DamagedDataDir) -> None:
    await patient.saved("a", seq_id=2)
    rival = patient.described("a", seq_id=1)

    assert await patient.found() == [("rival", rival)]


async def test_of_two_archives_without_rows_the_newer_one_has_the_name(patient: DamagedDataDir) -> None:
    first = patient.described("a", seq_id=3)
    second = patient.described("a", seq_id=20)
    last = patient.described("a", seq_id=12)

    assert await patient.found() == [("orphan", last), ("rival", first), ("rival", second)]


async def test_a_row_without_bytes_is_in_nobodys_way(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    patient.file(row.archive).unlink()
    orphan = patient.described("a", seq_id=2)

    assert await patient.found() == [("missing", f"{PATH}/a"), ("orphan", orphan)]


async def test_a_samplers_weights_are_nobodys_once_its_session_is_over(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    archive = ephemeral_name("s:sample:4")
    patient.archive(archive)
    patient.archive(ephemeral_name("unknown:sample:0"))

    assert await patient.found() == [("ephemeral", "unknown.sample.0/ephemeral")]
    async with patient.catalog() as catalog:
        await catalog.sessions.finish("s", reason="success", now=NOON)

    assert ("ephemeral", archive) in await patient.found()


async def test_unfinished_writes_are_found_unless_their_writer_lives(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    left = patient.store.root / ".partial" / "b-0123.tar"
    left.write_bytes(b"x" * 100)
    sink = patient.store.begin("c", 4096)

    assert await patient.found() == [("partial", str(left))]
    sink.abort()


async def test_empty_directories_are_litter_and_no_problem(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    (patient.store.root / "old.train.0" / "weights").mkdir(parents=True)

    examination = await patient.examined()

    assert [each.kind for each in examination.findings] == [FindingKind.EMPTY_DIRECTORY] * 2
    assert examination.problems == ()


async def test_to_look_changes_nothing(patient: DamagedDataDir) -> None:
    row = await patient.saved("a")
    patient.file(row.archive).unlink()
    patient.described("b", seq_id=2)
    await patient.begun("c", archive="x/weights/c.1")
    (patient.store.root / ".partial" / "d-0123.tar").write_bytes(b"x")
    before = patient.files()

    visit = await patient.looked_at(is_full=True)

    assert {finding.kind.value for finding in visit.examination.findings} == {
        "missing",
        "orphan",
        "stuck",
        "partial",
    }
    assert patient.files() == before


async def test_without_a_catalog_every_archive_is_without_a_row_and_none_is_made(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    patient.lose_catalog()

    visit = await patient.looked_at()

    assert not visit.has_catalog
    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.ORPHAN]
    assert not await patient.has_catalog()


async def test_beside_a_server_only_what_lasts_is_told(
    patient: DamagedDataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = await patient.saved("a")
    moving = await patient.saved("b", seq_id=2)
    patient.file(lost.archive).unlink()
    hidden = patient.file(moving.archive).rename(patient.data / "aside")
    looks = []

    async def between_two_looks(*values: object, **facts: object) -> object:
        looks.append(await examine(*values, **facts))  # type: ignore[arg-type]  # as it was called
        if len(looks) == 1:
            hidden.rename(patient.file(moving.archive))
        return looks[-1]

    from chockstone.engine.doctor import visit as doctor_visit

    examine = doctor_visit.examine
    monkeypatch.setattr(doctor_visit, "examine", between_two_looks)
    with owned(patient.data):
        visit = await patient.looked_at()

    assert visit.is_served
    assert len(looks[0].problems) == 2
    assert [finding.key for finding in visit.examination.problems] == [(FindingKind.MISSING, f"{PATH}/a")]


@pytest.mark.parametrize("state", ["active", "parked", "lost"])
async def test_what_brings_a_run_back_is_no_finding(patient: DamagedDataDir, state: RunState) -> None:
    await patient.saved("a")
    async with patient.catalog() as catalog:
        await catalog.runs.set_state(RUN, state)
    patient.recovery()
    patient.recovery(through=9)
    patient.journal()

    examination = await patient.examined(is_full=True)

    assert examination.findings == ()
    assert (examination.checkpoints, examination.archives) == (1, 3)


async def test_what_a_run_that_is_over_left_is_found(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    archive, journal = patient.recovery(), patient.journal(content=b"x" * 100)
    async with patient.catalog() as catalog:
        await catalog.runs.set_state(RUN, "unloaded")

    found = await patient.examined()

    assert [(each.kind.value, each.subject) for each in found.problems] == [
        ("recovery", archive),
        ("journal", str(journal)),
    ]
    assert found.problems[1].size_bytes == 100


async def test_a_finished_sessions_runs_are_over_whatever_their_rows_say(patient: DamagedDataDir) -> None:
    await patient.saved("a")
    archive, journal = patient.recovery(), patient.journal()
    async with patient.catalog() as catalog:
        await catalog.runs.set_state(RUN, "parked")
        await catalog.sessions.finish("s", reason="success", now=NOON)

    assert await patient.found() == [("recovery", archive), ("journal", str(journal))]
    assert await patient.found(is_served=True) == []


async def test_a_run_that_only_its_journal_knows_is_not_over(patient: DamagedDataDir) -> None:
    patient.recovery()
    patient.journal()
    patient.archive(ephemeral_name("s:sample:0"))
    alone = patient.recovery("other:train:3")

    assert await patient.found() == [("recovery", alone)]


async def test_archives_in_each_others_places_are_found_marked_and_found_healed(patient: DamagedDataDir) -> None:
    one, other = await patient.saved("a", 1.0), await patient.saved("b", 2.0, seq_id=2)
    assert one.size_bytes == other.size_bytes
    patient.swap(one.archive, other.archive)

    assert await patient.found() == [("swapped", f"{PATH}/a"), ("swapped", f"{PATH}/b")]
    await patient.treated()
    assert [row.state for row in (await patient.rows()).values()] == ["damaged", "damaged"]
    assert await patient.found() == [("known_damaged", f"{PATH}/a"), ("known_damaged", f"{PATH}/b")]

    patient.swap(one.archive, other.archive)
    await patient.treated()
    assert [(row.state, row.seal) for row in (await patient.rows()).values()] == [
        ("ready", one.seal),
        ("ready", other.seal),
    ]


async def test_a_row_of_an_earlier_version_gets_its_seal_by_a_treatment_only(patient: DamagedDataDir) -> None:
    one, other = await patient.saved("a", is_sealed=False), await patient.saved("b", 2.0, seq_id=2)

    assert await patient.found() == []
    assert (await patient.rows())["a"].seal is None
    await patient.treated()

    sealed = (await patient.rows())["a"].seal
    assert sealed is not None
    patient.swap(one.archive, other.archive)
    assert await patient.found() == [("swapped", f"{PATH}/a"), ("swapped", f"{PATH}/b")]


async def test_a_rebuilt_catalog_has_the_seals_of_the_store(patient: DamagedDataDir) -> None:
    before = await patient.saved("a")
    patient.lose_catalog()

    await patient.treated(AllowedRepairs(may_repair=False, may_create=True))

    assert (await patient.rows())["a"].seal == before.seal
