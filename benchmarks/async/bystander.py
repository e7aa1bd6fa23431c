"""Bystander: a process that does nothing but sleep and wake up, while something else is measured.

It wakes as often as the loop beats, on every core. Where the machine takes a core away from all programs, it is late
as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class Bystander:
    """Runs while the block does."""

    def __init__(self, interval_seconds: float) -> None:
        self._command = [sys.executable, "-S", str(Path(__file__)), str(interval_seconds)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.latest()  # now it runs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # it ends with its input

    def latest(self) -> float:
        """The largest lateness on any core since the last call, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


class _Sleeper:
    def __init__(self, core: int, interval_seconds: float) -> None:
        self._core = core
        self._interval = interval_seconds
        self._latest = 0.0
        threading.Thread(target=self._sleep_for_ever, daemon=True).start()

    def _sleep_for_ever(self) -> None:
        os.sched_setaffinity(0, {self._core})  # of this thread alone
        while True:
            due = time.monotonic() + self._interval
            time.sleep(self._interval)
            self._latest = max(self._latest, time.monotonic() - due)

    def drain(self) -> float:
        latest, self._latest = self._latest, 0.0
        return latest


def _main() -> None:
    sleepers = [_Sleeper(core, float(sys.argv[1])) for core in os.sched_getaffinity(0)]
    for _ in sys.stdin:
        print(max(sleeper.drain() for sleeper in sleepers), flush=True)


if __name__ == "__main__":
    _main()
