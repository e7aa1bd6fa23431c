from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import RowMissing
from chockstone.engine.doctor.findings import FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs
from chockstone.engine.storage.archive_names import archive_name
from support.engine.damaged_data_dirs import NOON, RUN, SPEC, DamagedDataDir, described, later

REBUILD = AllowedRepairs(may_repair=False, may_create=True)


@pytest.fixture
def patient(tmp_path: Path) -> DamagedDataDir:
    return DamagedDataDir(tmp_path / "data")


async def test_a_lost_catalog_comes_back_from_the_store(patient: DamagedDataDir) -> None:
    before = {name: await patient.saved(name, seq_id=seq_id) for name, seq_id in (("a", 30), ("b", 9), ("c", 10))}
    patient.lose_catalog()

    visit = await patient.treated(REBUILD)

    after = await patient.rows()
    assert visit.examination.findings == ()
    assert list(after) == ["a", "b", "c"]  # in the order in which they were saved
    assert after["a"].created_at < after["b"].created_at < after["c"].created_at
    for name, row in before.items():
        kept = ("run_id", "kind", "owner", "archive", "size_bytes", "base_model", "spec", "state")
        assert [getattr(after[name], fact) for fact in kept] == [getattr(row, fact) for fact in kept]
        assert after[name].optimizer_config == {"type": "adamw"}
        assert after[name].user_metadata == {"loss": "1.5"}
        assert (after[name].expires_at, after[name].public) == (None, False)


async def test_the_runs_and_sessions_of_rebuilt_checkpoints_are_ended_ones(patient: DamagedDataDir) -> None:
    patient.described("b", run_id="one:train:0", at=later(1))
    patient.described("a", run_id="one:train:1", seq_id=2, at=later(3))
    patient.described("a", run_id="one:train:0", seq_id=2, at=later(5))
    patient.described("a", run_id="two:train:0", owner="bob", at=later(6))

    await patient.treated(REBUILD)

    async with patient.catalog() as catalog:
        runs = {run.run_id: run for run in (await catalog.runs.list(None, limit=10)).rows}
        sessions = {session.session_id: session for session in await catalog.sessions.list(None, limit=10)}
        users = [(await catalog.users.get(user_id)).user_id for user_id in ("ann", "bob")]
        with pytest.raises(RowMissing):
            await catalog.users.get("local")
    assert sorted(runs) == ["one:train:0", "one:train:1", "two:train:0"]
    assert {run.state for run in runs.values()} == {"unloaded"}
    assert (runs["one:train:0"].spec, runs["one:train:0"].base_model) == (SPEC, "tiny")
    assert runs["one:train:0"].created_at == later(1)
    assert {session_id: session.owner for session_id, session in sessions.items()} == {"one": "ann", "two": "bob"}
    assert all(session.is_finished for session in sessions.values())
    assert users == ["ann", "bob"]


async def test_a_rebuild_done_again_changes_nothing(patient: DamagedDataDir) -> None:
    patient.described("a")
    patient.described("b", seq_id=2)

    first = await patient.treated(REBUILD)
    rows = await patient.rows()
    again = await patient.treated(REBUILD)

    assert len(first.repairs) == 2
    assert again.repairs == ()
    assert await patient.rows() == rows


async def test_a_rebuild_adds_to_a_catalog_and_repairs_nothing_else(patient: DamagedDataDir) -> None:
    lost = await patient.saved("a")
    patient.file(lost.archive).unlink()
    patient.described("b", seq_id=2)

    visit = await patient.treated(REBUILD)

    assert sorted(await patient.rows()) == ["a", "b"]
    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.MISSING]


async def test_of_two_archives_of_a_name_the_newer_one_comes_back(patient: DamagedDataDir) -> None:
    older = patient.described("a", 1, seq_id=7)
    newer = patient.described("a", 2, seq_id=3)

    visit = await patient.treated(REBUILD)

    assert (await patient.rows())["a"].archive == newer
    assert [finding.key for finding in visit.examination.findings] == [(FindingKind.RIVAL, older)]
    assert patient.value(older) == 1


@pytest.mark.parametrize("name", [".hidden", "n" * 255, "x-rayed", "a.b.c", "-"])
async def test_names_that_a_store_cannot_hold_come_back(patient: DamagedDataDir, name: str) -> None:
    patient.described(name)

    await patient.treated(REBUILD)

    assert list(await patient.rows()) == [name]


async def test_a_copy_comes_back_in_the_run_it_was_copied_to(patient: DamagedDataDir) -> None:
    source = patient.described("a", 4)
    copy = archive_name("copied:train:0", "weights", "best", None)
    patient.store.copy(source, copy)

    await patient.treated(REBUILD)

    rows = await patient.rows()
    assert (rows["a"].path, rows["a"].archive) == (f"tinker://{RUN}/weights/a", source)
    assert (rows["best"].path, rows["best"].archive) == ("tinker://copied:train:0/weights/best", copy)
    assert patient.value(rows["best"].archive) == 4


async def test_a_copy_belongs_to_whom_its_run_says(patient: DamagedDataDir) -> None:
    source = patient.described("a", owner="ann")
    async with patient.catalog() as catalog:
        await catalog.sessions.create("copied", owner="bob", sdk_version="0", now=NOON)
        await catalog.runs.create("copied", 0, owner="bob", base_model="tiny", spec=SPEC, now=NOON)
    patient.store.copy(source, archive_name("copied:train:0", "weights", "best", None))

    await patient.treated(REBUILD)

    assert (await patient.rows())["best"].owner == "bob"


async def test_a_copy_whose_name_is_hashed_gets_its_sources_and_says_so(patient: DamagedDataDir) -> None:
    source = patient.described("a")
    patient.store.copy(source, archive_name("copied:train:0", "weights", ".best", None))

    visit = await patient.treated(REBUILD)

    told = [repair.finding.detail for repair in visit.repairs]
    assert told[0] == f"tinker://{RUN}/weights/a" or told[1] == f"tinker://{RUN}/weights/a"
    assert any("its own name cannot be read from the store" in detail for detail in told)
    async with patient.catalog() as catalog:
        paths = {row.path async for row in catalog.checkpoints.iterate()}
    assert paths == {f"tinker://{RUN}/weights/a", "tinker://copied:train:0/weights/a"}


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "nonsense"},
        {"path": 5},
        {"owner": ""},
        {"owner": None},
        {"spec": {"rank": "eight"}},
        {"spec": {"rank": [8], "seed": 1}},
        {"spec": {"rank": 8, "seed": None}},
        {"spec": {"rank": 8, "seed": 1, "unknown": 2}},
        {"spec": []},
        {"base_model": None},
        {"user_metadata": None},
        {"optimizer_config": "adam"},
    ],
)
async def test_an_archive_that_describes_itself_wrongly_is_left_alone(
    patient: DamagedDataDir, changed: dict[str, object]
) -> None:
    patient.archive(archive_name(RUN, "weights", "a", 1), **{**described("a"), **changed})

    visit = await patient.treated(REBUILD)

    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.STRAY]
    assert visit.repairs == ()


async def test_an_archive_whose_words_no_catalog_holds_stops_no_other(patient: DamagedDataDir) -> None:
    patient.described("a", owner="\ud800", run_id="r:train:0")
    patient.described("b", user_metadata={"note": "\ud800"}, seq_id=2)
    patient.described("c", seq_id=3)

    visit = await patient.treated(REBUILD)

    assert list(await patient.rows()) == ["c"]
    assert [bool(repair.failure) for repair in visit.repairs] == [True, True, False]
    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.ORPHAN] * 2


@pytest.mark.parametrize(
    "place", ["a.1", "s.train.0/a.1", "s.train.0/other/a.1", "elsewhere/weights/a.1", "s.train.0/weights/a"]
)
async def test_an_archive_that_is_nowhere_a_server_puts_one_is_left_alone(patient: DamagedDataDir, place: str) -> None:
    patient.archive(place, **described("a"))

    visit = await patient.treated(REBUILD)

    assert [finding.kind for finding in visit.examination.findings] == [FindingKind.STRAY]


async def test_a_run_with_a_journal_comes_back_to_go_on(patient: DamagedDataDir) -> None:
    """As ended, its journal would be taken for something left over."""
    patient.described("a", run_id="one:train:0")
    patient.described("a", run_id="one:train:1", seq_id=2)
    journal, archive = patient.journal("one:train:1"), patient.recovery("one:train:1")

    visit = await patient.treated(AllowedRepairs(may_create=True))

    assert visit.examination.findings == ()
    assert journal.exists()
    assert patient.file(archive).exists()
    async with patient.catalog() as catalog:
        assert not (await catalog.sessions.get("one")).is_finished
        assert [run.state for run in await catalog.runs.list_by_session("one")] == ["unloaded", "parked"]
