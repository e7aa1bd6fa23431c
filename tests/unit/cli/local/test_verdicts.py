from __future__ import annotations

import re
from pathlib import Path

from support.cli.store_commands import flip, run, run_json


def test_verify_finds_one_flipped_bit_among_good_ones(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    result, document = run("verify", store), run_json("verify", store, "--prefix", "run-1")

    assert result.exit_code == 1
    assert "run-1/step-00000000: good: 1 of 1 blocks verified" in result.stdout
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
