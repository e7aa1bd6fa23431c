"""`.ci/suite.py` repeats tests that failed, and passes over at most three flaky ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / ".ci" / "suite.py"
TESTS = """
import pathlib
import pytest

ALWAYS, FIRST = {always}, {first}

@pytest.mark.parametrize("number", range(5))
def test_number(number):
    mark = pathlib.Path(f"ran-{{number}}")
    is_first = not mark.exists()
    mark.touch()
    assert number not in ALWAYS, "broken"
    assert not (is_first and number in FIRST), f"unlucky {{number}}"
"""


def run_suite(where: Path, *, always: set[int], first: set[int], jobs: int) -> subprocess.CompletedProcess[str]:
    (where / "pytest.ini").write_text("[pytest]\n")
    (where / "test_numbers.py").write_text(TESTS.format(always=always, first=first))
    command = [sys.executable, str(SUITE), "-n", str(jobs)]
    few_plugins = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "xdist.plugin",
    }  # others take long to import
    return subprocess.run(
        command, cwd=where, capture_output=True, text=True, timeout=120, env={**os.environ, **few_plugins}
    )


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_flaky_test_passes_and_its_first_traceback_is_reported(tmp_path: Path, jobs: int) -> None:
    done = run_suite(tmp_path, always=set(), first={1, 3}, jobs=jobs)

    report = (tmp_path / "build" / "flaky.txt").read_text()
    assert done.returncode == 0, done.stdout
    assert {line for line in report.splitlines() if line.startswith("flaky: ")} == {
        "flaky: test_numbers.py::test_number[1]",
        "flaky: test_numbers.py::test_number[3]",
    }
    assert "AssertionError: unlucky 1" in report
    assert "AssertionError: unlucky 3" in report


def test_a_test_that_fails_twice_fails_the_suite(tmp_path: Path) -> None:
    done = run_suite(tmp_path, always={2}, first={1}, jobs=0)

    assert done.returncode == 1
    assert "failed twice: test_numbers.py::test_number[2]" in done.stdout
    assert not (tmp_path / "build" / "flaky.txt").exists()


def test_more_than_three_flaky_tests_fail_the_suite(tmp_path: Path) -> None:
    done = run_suite(tmp_path, always=set(), first={0, 1, 2, 3}, jobs=0)

    assert done.returncode == 1
    assert "repeating" not in done.stdout


def test_a_suite_that_passes_reports_nothing_flaky(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "flaky.txt").write_text("of the run before")

    done = run_suite(tmp_path, always=set(), first=set(), jobs=0)

    assert done.returncode == 0
    assert not (tmp_path / "build" / "flaky.txt").exists()


def test_a_suite_that_cannot_be_collected_fails(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")

    done = run_suite(tmp_path, always=set(), first=set(), jobs=0)

    assert done.returncode not in (0, 1)
