from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.engine.ownership.data_directory import owned
from support.engine.damaged_data_dirs import RUN, DamagedDataDir
from support.postgres import shared_postgres

PATH = f"tinker://{RUN}/weights"


@pytest.fixture
def patient(tmp_path: Path) -> DamagedDataDir:
    return DamagedDataDir(tmp_path / "data")


@pytest.fixture
def hurt(patient: DamagedDataDir) -> DamagedDataDir:
    """One checkpoint is well, one has lost its bytes, one its row."""
    asyncio.run(patient.saved("well"))
    lost = asyncio.run(patient.saved("lost", seq_id=2))
    patient.file(lost.archive).unlink()
    patient.described("found", seq_id=3)
    return patient


def run(patient: DamagedDataDir, *words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--data", str(patient.data), *words], catch_exceptions=False)


def run_json(patient: DamagedDataDir, *words: str) -> Any:
    return json.loads(run(patient, *words, "--json").stdout, parse_constant=pytest.fail)


def names(patient: DamagedDataDir) -> list[str]:
    return sorted(asyncio.run(patient.rows()))


def test_health_is_told_in_two_lines_and_a_zero(patient: DamagedDataDir) -> None:
    row = asyncio.run(patient.saved("a"))

    result = run(patient)

    assert result.exit_code == 0
    size = f"{row.size_bytes / 1000:.1f} kB"
    assert f"1 checkpoint in the catalog, 1 archive, {size} in the store" in result.stdout
    assert "healthy: store and catalog agree" in result.stdout


def test_findings_are_explained_and_nothing_is_changed(hurt: DamagedDataDir) -> None:
    before = hurt.files()

    result = run(hurt)

    assert result.exit_code == 1
    assert "1 checkpoint without bytes" in result.stdout
    assert "files were deleted manually" in result.stdout
    assert "--fix removes them from the catalog" in result.stdout
    assert f"{PATH}/lost" in result.stdout
    assert "1 archive without a row" in result.stdout
    assert "2 findings" in result.stdout and "`chockstone doctor --fix` repairs all" in result.stdout
    assert hurt.files() == before


def test_a_fix_repairs_and_says_what_it_did(hurt: DamagedDataDir) -> None:
    result = run(hurt, "--fix")

    assert result.exit_code == 0
    assert f"{PATH}/lost: removed from the catalog" in result.stdout
    assert f"listed as {PATH}/found of ann" in result.stdout
    assert "repaired 2 findings" in result.stdout
    assert "the repaired ones are private and do not expire" in result.stdout
    assert names(hurt) == ["found", "well"]
    assert run(hurt).exit_code == 0


def test_a_dry_run_says_what_would_be_done(hurt: DamagedDataDir) -> None:
    before = hurt.files()

    result = run(hurt, "--fix", "--dry-run")

    assert result.exit_code == 1
    assert "would repair all" in result.stdout
    assert "would repair 1" in run(hurt, "--rebuild", "--dry-run").stdout
    assert hurt.files() == before


def test_json_has_every_finding_and_repair(hurt: DamagedDataDir) -> None:
    found = run_json(hurt)
    fixed = run_json(hurt, "--fix")

    assert (found["findings"][0]["kind"], found["findings"][0]["subject"]) == ("missing", f"{PATH}/lost")
    assert (found["is_healthy"], found["checkpoints"], found["archives"]) == (False, 2, 2)
    assert fixed["repairs"][0]["done"] == "removed from the catalog"
    assert (fixed["is_healthy"], fixed["findings"]) == (True, [])


def test_beside_a_server_it_looks_and_does_not_touch(hurt: DamagedDataDir) -> None:
    with owned(hurt.data):
        looked = run(hurt)
        fixing = run(hurt, "--fix")
        rebuilding = run_json(hurt, "--rebuild")

    assert looked.exit_code == 1
    assert "A server is running here, with 0 saves in progress" in looked.stdout
    assert fixing.exit_code == 3
    assert "a server uses the data directory" in fixing.stderr and "stop the server" in fixing.stderr
    assert rebuilding["error"]["kind"] == "DoctorFailed"
    assert names(hurt) == ["lost", "well"]


def test_a_lost_database_is_rebuilt(hurt: DamagedDataDir) -> None:
    hurt.database.unlink()

    looked = run(hurt)
    fixing = run(hurt, "--fix")
    rebuilt = run(hurt, "--rebuild")

    assert "There is no catalog: `chockstone doctor --rebuild` makes one" in looked.stdout
    assert fixing.exit_code == 3 and "--rebuild" in fixing.stderr
    assert rebuilt.exit_code == 0
    assert "API keys, policies, lifetimes and publications are not in archives" in rebuilt.stdout
    assert "`chockstone keys create USER`" in rebuilt.stdout
    assert names(hurt) == ["found", "well"]
    assert "are not in archives" not in run(hurt, "--rebuild").stdout  # this catalog was not lost


def test_a_file_that_is_no_database_is_told_and_left(patient: DamagedDataDir) -> None:
    asyncio.run(patient.saved("a"))
    patient.database.write_bytes(b"this is no database at all")

    looked, rebuilding = run(patient), run(patient, "--rebuild")

    assert (looked.exit_code, rebuilding.exit_code) == (3, 3)
    assert "is not a database" in rebuilding.stderr
    assert "move its file away" in rebuilding.stderr and "move its file away" in looked.stderr
    assert patient.database.read_bytes() == b"this is no database at all"


def test_a_database_that_does_not_let_us_in_is_not_taken_for_lost(patient: DamagedDataDir) -> None:
    result = run(patient, "--rebuild", "--database", shared_postgres().url("postgres", password="wrong-one"))

    assert result.exit_code == 3
    assert "check the user and the password" in result.stderr
    assert "lost" not in result.stderr and "wrong-one" not in result.stderr


def test_a_full_reading_finds_a_flipped_bit(patient: DamagedDataDir) -> None:
    row = asyncio.run(patient.saved("a"))
    patient.flip(row.archive)

    assert run(patient).exit_code == 0
    result = run(patient, "--full", "--fix")

    assert result.exit_code == 1
    assert f"{PATH}/a: marked as damaged" in result.stdout
    assert "1 checkpoint marked as damaged" in result.stdout


def test_what_is_lost_for_good_is_asked_for(patient: DamagedDataDir) -> None:
    row = asyncio.run(patient.saved("a"))
    patient.archive("by-hand/step-1")
    patient.behead(row.archive)

    without_fix = run(patient, "--remove-damaged")
    unanswered = run(patient, "--fix", "--remove-damaged", "--remove-orphans")

    assert without_fix.exit_code == 2 and "add --fix" in without_fix.stderr
    assert unanswered.exit_code == 2 and "cannot ask for confirmation" in unanswered.stderr
    assert len(list(patient.store.entries())) == 2

    assert run(patient, "--fix", "--remove-damaged", "--remove-orphans", "--yes").exit_code == 0
    assert list(patient.store.entries()) == []


def test_saying_no_removes_nothing(patient: DamagedDataDir) -> None:
    patient.archive("by-hand/step-1")
    asyncio.run(patient.rows())  # makes the catalog
    main, other = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "chockstone.cli",
        "doctor",
        "--data",
        str(patient.data),
        "--fix",
        "--remove-orphans",
    ]

    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other)
    os.write(main, b"n\n")
    code = process.wait(timeout=60)
    shown = os.read(main, 65536).decode()
    os.close(main)
    os.close(other)

    assert code == 130
    assert "Delete archives that cannot be listed" in shown
    assert len(list(patient.store.entries())) == 1


def test_a_directory_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    result = run(DamagedDataDir(tmp_path / "data"), "--data", str(tmp_path / "nowhere"))

    assert result.exit_code == 2
    assert "there is no data directory" in result.stderr and "--data" in result.stderr


def test_findings_that_no_fix_repairs_are_not_counted_as_if_one_did(patient: DamagedDataDir) -> None:
    asyncio.run(patient.saved("a"))
    patient.archive("by-hand/step-1")

    looked, fixed = run(patient), run(patient, "--fix")

    assert "`chockstone doctor --fix` repairs none: the remedies are above" in looked.stdout
    assert "1 finding, " in fixed.stdout and "left; the remedies are listed above" in fixed.stdout


def test_many_findings_of_a_kind_are_cut_short(patient: DamagedDataDir) -> None:
    asyncio.run(patient.saved("a"))
    for number in range(25):
        patient.archive(f"by-hand/step-{number}")

    result = run(patient)

    assert "25 archives without a checkpoint's name" in result.stdout
    assert "… and 5 more; --json lists all" in result.stdout
    assert len(run_json(patient)["findings"]) == 25


def test_control_characters_of_an_archive_do_not_reach_the_terminal(patient: DamagedDataDir) -> None:
    asyncio.run(patient.saved("a"))
    patient.archive("s.train.0/weights/b.1", path="\x1b[31mtinker://", owner="x", spec={})

    result = run(patient)

    assert "\x1b" not in result.stdout
    assert "1 archive without a checkpoint's name" in result.stdout
