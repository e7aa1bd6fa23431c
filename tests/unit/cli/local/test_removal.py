from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cli.store_commands import run, run_json


def test_rm_removes_what_is_there_and_reports_what_is_not(store: Path) -> None:
    first = run("rm", store, "run-1/step-00000000", "run-1/typo", "--yes")
    again = run_json("rm", store, "run-1/step-00000000", "--yes")

    assert first.exit_code == 1
    assert "removed run-1/step-00000000" in first.stdout
    assert "'run-1/typo' is not in" in first.stderr
    assert (again["removed"], again["missing"]) == ([], ["run-1/step-00000000"])
    assert len(list(store.rglob("*.tar"))) == 2


def test_rm_asks_nobody_and_removes_nothing(store: Path) -> None:
    refused, dry = run("rm", store, "run-1/step-00000000"), run("rm", store, "run-1/step-00000000", "--dry-run")

    assert (refused.exit_code, dry.exit_code) == (2, 0)
    assert "--yes" in refused.stderr
    assert "would remove run-1/step-00000000" in dry.stdout
    assert len(list(store.rglob("*.tar"))) == 3


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("y", 2)])
def test_rm_asks_at_a_terminal(
    store: Path, in_terminal: Callable[..., tuple[int, str]], answer: str, left: int
) -> None:
    code, shown = in_terminal("rm", store, "run-1/step-00000000", typed=f"{answer}\n")

    assert code == 0
    assert re.search(r"Remove 1 checkpoint, [\d.]+ kB\? \[y/N\]", shown)
    assert len(list(store.rglob("*.tar"))) == left
