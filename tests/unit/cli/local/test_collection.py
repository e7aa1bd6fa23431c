from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from support.cli.store_commands import fill, flip, run, run_json


def test_gc_keeps_what_rules_want_and_the_newest_good_one(store: Path) -> None:
    dry = run("gc", store, "--keep-best", "loss:max", "--dry-run")
    still_there = len(list(store.rglob("*.tar")))
    document = run_json("gc", store, "--keep-best", "loss:max")

    assert still_there == 3
    assert re.search(r"would remove +run-1/step-00000100 +[\d.]+ kB +no rule keeps it", dry.stdout)
    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000100"]
    assert {entry["name"]: entry["reasons"] for entry in document["kept"]} == {
        "run-1/step-00000000": ["best by loss"],
        "run-1/step-00000200": ["newest good one"],
    }
    assert document["freed_bytes"] == document["removed"][0]["size_bytes"]


def test_gc_reads_the_newest_in_full_before_it_counts_as_good(tmp_path: Path) -> None:
    fill(tmp_path, steps=2)
    flip(tmp_path / "run-1/step-00000100.tar")

    document = run_json("gc", tmp_path, "--keep-last", "1")

    assert document["removed"] == []
    assert {entry["name"] for entry in document["kept"]} == {"run-1/step-00000000", "run-1/step-00000100"}


def test_gc_removes_damaged_ones_when_asked_but_never_the_foreign(store: Path) -> None:
    flip(store / "run-1/step-00000000.tar", at=5000)  # in the manifest
    (store / "foreign.tar").write_bytes(bytes(20_000))

    document = run_json("gc", store, "--remove-damaged")

    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000000"]
    assert document["removed"][0]["reason"].startswith("damaged: ")
    assert (store / "foreign.tar").exists()


def test_gc_removes_what_a_save_has_set_aside_also_if_it_no_longer_looks_like_an_archive(store: Path) -> None:
    aside = store / "run-1/step-00000000.damaged-1.tar"
    aside.write_bytes(bytes(20_000))

    document = run_json("gc", store, "--remove-damaged")

    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000000.damaged-1"]
    assert not aside.exists()


def test_gc_keeps_damaged_ones_when_no_good_one_is_left(tmp_path: Path) -> None:
    fill(tmp_path, steps=1)
    flip(tmp_path / "run-1/step-00000000.tar", at=5000)

    result = run("gc", tmp_path, "--remove-damaged")

    assert "no good checkpoint remains" in result.stderr
    assert len(list(tmp_path.rglob("*.tar"))) == 1


def test_gc_sweeps_partial_writes(store: Path) -> None:
    (store / ".partial/orphan.tar").write_bytes(b"half")

    document = run_json("gc", store, "--sweep-partials")

    assert [Path(partial["place"]).name for partial in document["partials"]] == ["orphan.tar"]
    assert document["freed_bytes"] == 4
    assert os.listdir(store / ".partial") == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--pin", "step-00000100"], "no checkpoint 'step-00000100'"),
        (["--keep-best", "los"], "no checkpoint has a metric 'los'"),
        (["--ttl", "7x"], "'7x' is not a duration"),
        (["--ttl", "0d"], "'0d' is not a duration"),
        (["--keep-last", "0"], "keep-last"),
    ],
)
def test_gc_refuses_rules_that_protect_nothing(store: Path, words: list[str], complaint: str) -> None:
    result = run("gc", store, *words)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(list(store.rglob("*.tar"))) == 3


def test_gc_takes_ages_and_pins(store: Path) -> None:
    time.sleep(0.1)

    document = run_json("gc", store, "--ttl", "0.1s", "--pin", "run-1/step-00000000")

    assert [entry["name"] for entry in document["removed"]] == ["run-1/step-00000100"]
    assert document["removed"][0]["reason"] == "expired"
