"""Run the suite; run each failed test once more, alone; report the ones that pass then as flaky.

    python .ci/suite.py [PYTEST ARGUMENT ...]

The arguments go to the first run. The exit code is pytest's, with one exception: a run in which at most three tests
failed, all of which passed when they were repeated, exits 0. The first traceback of each flaky test is written to
build/flaky.txt, which `.ci/run` prints last.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

MOST_FLAKY: Final = 3
REPORT: Final = Path("build", "flaky.txt")


class Failures:
    """A pytest plugin that keeps the first traceback of each failed test, in the order in which the tests failed."""

    def __init__(self) -> None:
        self.tracebacks: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tracebacks.setdefault(report.nodeid, report.longreprtext)


def main(arguments: list[str]) -> int:
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    failures = Failures()
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` has it
    exit_code = pytest.main(arguments, plugins=[failures])
    if exit_code != pytest.ExitCode.TESTS_FAILED or not failures.tracebacks:
        return exit_code  # all passed, or the suite could not be run as it should
    if len(failures.tracebacks) > MOST_FLAKY:
        print(f"{len(failures.tracebacks)} tests failed; none is repeated, because more than {MOST_FLAKY} failed")
        return exit_code
    for test in failures.tracebacks:
        print(f"repeating alone: {test}", flush=True)
        if subprocess.run([sys.executable, "-m", "pytest", test], check=False).returncode:
            print(f"failed twice: {test}")
            return exit_code
    REPORT.write_text("".join(f"\nflaky: {test}\n\n{text}\n" for test, text in failures.tracebacks.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
