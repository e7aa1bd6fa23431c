from __future__ import annotations

import re
from pathlib import Path

from support.cli.store_commands import flip, run, run_json


def test_diff_says_what_changed(store: Path) -> None:
    same = run("diff", store, "run-1/step-00000100", "run-1/step-00000100")
    changed = run("diff", store, "run-1/step-00000000", "run-1/step-00000200")

    assert (same.exit_code, changed.exit_code) == (0, 1)
    assert "the same: 2 tensors, 3 values, 1 file" in same.stdout
    extent = r"100 of 100 elements, 100 of 400 bytes, largest change 2"
    assert re.search(rf"changed +tensor +model.w +numpy F32\[100\] +{extent}", changed.stdout)
    assert re.search(r"changed +value +epoch +0 -> 2", changed.stdout)


def test_diff_takes_two_files_and_speaks_json(store: Path) -> None:
    document = run_json("diff", store / "run-1/step-00000000.tar", store / "run-1/step-00000100.tar")

    assert (document["same"], document["before"]["step"], document["after"]["step"]) == (False, 0, 100)
    assert [change["path"] for change in document["changes"]] == ["model.w", "epoch"]
    assert document["changes"][0]["extent"]["max_difference"] == 1.0


def test_diff_of_a_damaged_one_says_so(store: Path) -> None:
    flip(store / "run-1/step-00000100.tar")

    result = run("diff", store, "run-1/step-00000000", "run-1/step-00000100")

    assert result.exit_code == 1
    assert "is not what was written" in result.stderr
