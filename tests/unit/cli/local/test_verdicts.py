from __future__ import annotations

import re
from pathlib import Path

from support.cli.store_commands import flip, run, run_json


def test_verify_finds_one_flipped_bit_among_good_ones(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    result, document = run("verify", store), run_json("verify", store, "--prefix", "run-1")

    assert result.exit_code == 1
    assert "run-1/step-00000000: ok: 1 of 1 blocks verified" in result.stdout
    assert re.search(r"run-1/step-00000100: damaged: block 0 of 1, .* is not what was written", result.stdout)
    assert "3 checkpoints: 2 ok, 1 damaged" in result.stdout
    assert [entry["state"] for entry in document["checkpoints"]] == ["good", "damaged", "good"]
    assert run("ls", store).exit_code == 0


def test_verify_judges_only_what_is_named(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    assert run("verify", store, "run-1/step-00000000", "run-1/step-00000200").exit_code == 0
    assert run("verify", store / "run-1/step-00000000.tar").exit_code == 0
    assert run("verify", *sorted(store.rglob("*.tar"))).exit_code == 1


def test_verify_tells_missing_from_damaged_from_foreign(store: Path) -> None:
    (store / "foreign.tar").write_bytes(bytes(20_000))

    document = run_json("verify", store, "nowhere", "foreign")

    assert [entry["state"] for entry in document["checkpoints"]] == ["missing", "foreign"]
    assert run("verify", store, "nowhere").exit_code == 1


def test_verifying_nothing_is_a_failure_that_says_so(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    empty, unmatched = run("verify", tmp_path / "empty"), run("verify", store, "--prefix", "run-9")
    missing, file = run("verify", tmp_path / "nowhere"), run("verify", tmp_path / "*.tar")

    assert [each.exit_code for each in (empty, unmatched, missing, file)] == [1, 1, 3, 1]
    assert empty.stdout == ""
    assert f"nothing was verified: {tmp_path}/empty holds no checkpoint" in empty.stderr
    assert "below the prefix 'run-9', holds no checkpoint" in unmatched.stderr
    assert f"there is no directory '{tmp_path}/nowhere'" in missing.stderr
    assert "*.tar" in file.stderr
    document = run_json("verify", tmp_path / "empty")
    assert (document["checkpoints"], document["good"], document["bad"]) == ([], 0, 0)


def test_a_name_is_shortened_to_a_unique_prefix(store: Path) -> None:
    assert run_json("verify", store, "run-1/step-000002")["checkpoints"][0]["name"] == "run-1/step-00000200"
    ambiguous = run("verify", store, "run-1/step")
    assert (ambiguous.exit_code, "is the beginning of 3 checkpoints" in ambiguous.stderr) == (2, True)
