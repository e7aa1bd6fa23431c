"""Ranks for tests: real processes over gloo, forked by one ``nursery.py`` that has torch already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("nursery.py")
DEADLINE_SECONDS = 100  # for what takes a few: a rank that hangs is killed by its alarm, and the test says so


@dataclass(frozen=True)
class Told:
    """What a rank said, and how it ended."""

    said: list[dict[str, Any]]
    returncode: int
    errors: str

    def outcome(self, what: str) -> dict[str, Any]:
        return next(line for line in self.said if what in (line.get("done"), line.get("failed")))


class Nursery:
    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self._process = process
        self._home = home
        self._numbers = count()

    def live(self, life: str, url: str, *, world_size: int, **facts: object) -> list[Told]:
        """One life of a job: all its ranks, until the last has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        directory = self._home / f"life-{next(self._numbers)}"
        directory.mkdir()
        job = {"life": life, "url": url, "world_size": world_size, "directory": str(directory), "patience": 30.0}
        job |= {"deadline_seconds": DEADLINE_SECONDS, **facts}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        return [
            Told(
                [json.loads(line) for line in (directory / f"said-{rank}").read_text().splitlines()],
                code,
                (directory / f"errors-{rank}").read_text(),
            )
            for rank, code in enumerate(codes)
        ]


@contextmanager
def nursery(home: Path) -> Iterator[Nursery]:
    """Give it the environment that its ranks need before it starts: they have no other."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            yield Nursery(process, home)
        finally:
            assert process.stdin is not None
            process.stdin.close()
