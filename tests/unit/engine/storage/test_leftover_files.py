from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.catalog import Catalog
from chockstone.engine.journal.journal import JournalDamaged
from chockstone.engine.storage.archive_names import ephemeral_name, recovery_folder
from chockstone.engine.storage.leftover_files import (
    archives_to_replay,
    find_leftover_files,
    journal_bytes,
    list_journals,
)
from support.engine.damaged_data_dirs import write_journal
from support.engine.making import NOW


async def make_run(catalog: Catalog, run_id: str) -> None:
    await catalog.sessions.rebuild(run_id.partition(":")[0], owner="a", now=NOW)
    await catalog.runs.rebuild(run_id, owner="a", base_model="tiny", spec={}, now=NOW)


async def test_other_archives_are_never_remains(catalog: Catalog) -> None:
    others = ["x.train.0/weights/recovery.1-ab", ephemeral_name("x:sample:0"), "recovery", "x.train.0/recovery"]

    leftovers = await find_leftover_files(catalog, others, [])

    assert (leftovers.archives, leftovers.journals) == ((), ())


async def test_archives_of_a_run_go_with_it_and_not_with_another_of_its_session(catalog: Catalog) -> None:
    for number in (1, 10):
        await make_run(catalog, f"x:train:{number}")
    await catalog.runs.set_state("x:train:1", "unloaded")
    one, ten = (f"{recovery_folder(f'x:train:{number}')}/1.ab" for number in (1, 10))
    journals = [Path("journal/runs") / f"x.train.{number}" for number in (1, 10)]

    leftovers = await find_leftover_files(catalog, [one, ten], journals)

    assert (leftovers.archives, leftovers.journals) == ((one,), (journals[0],))
    assert leftovers.living_sessions == {"x"}


async def test_hundreds_of_runs_are_asked_about_at_once(catalog: Catalog) -> None:
    await make_run(catalog, "x:train:0")
    await catalog.runs.set_state("x:train:0", "unloaded")
    journals = [Path(f"x.train.{number}") for number in range(1203)]

    leftovers = await find_leftover_files(catalog, [], journals)

    assert leftovers.journals == (journals[0],)


async def test_what_is_no_runs_directory_is_left_alone(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("x")

    found = list_journals(tmp_path)

    assert found == [tmp_path / "notes"]
    assert (await find_leftover_files(catalog, [], found)).journals == ()
    assert list_journals(tmp_path / "nowhere") == []


def test_a_journal_is_as_large_as_its_files(tmp_path: Path) -> None:
    for size in (3, 40):
        (tmp_path / str(size)).write_bytes(b"x" * size)

    assert journal_bytes(tmp_path) == 43
    assert journal_bytes(tmp_path / "nowhere") == 0


async def test_what_a_run_has_loaded_it_would_load_again(tmp_path: Path) -> None:
    load = {"kind": "operation", "word": "load", "values": {}}
    await write_journal(tmp_path / "a", load, {"kind": "result", "of": 1, "facts": {"archive": "x/weights/one"}})
    await write_journal(tmp_path / "b", load, {"kind": "result", "of": 1, "facts": {}}, {"kind": "attempt", "of": 1})

    assert archives_to_replay([tmp_path / "a", tmp_path / "b", tmp_path / "nowhere"]) == {"x/weights/one"}


async def test_a_record_that_nobody_can_read_may_have_loaded_anything(tmp_path: Path) -> None:
    await write_journal(
        tmp_path / "a", {"kind": "result", "of": 1, "facts": {"archive": "x/weights/one"}}, {"kind": "other"}
    )
    [segment] = (tmp_path / "a").iterdir()
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"weights", b"weighty"))

    with pytest.raises(JournalDamaged, match=r"record \d+ cannot be read"):
        archives_to_replay([tmp_path / "a"])
