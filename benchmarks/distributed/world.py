"""Worlds: the processes of a torch.distributed group, which get the same commands; see ``rank.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from benchmarks.distributed.rank import Reply
from benchmarks.harness.remote import REPOSITORY

END_SECONDS = 30.0


class World:
    """Its ranks run while the ``with`` block does."""

    def __init__(self, size: int, scratch: Path) -> None:
        self.size = size
        self._rendezvous = scratch / f"rendezvous-{size}"
        self._log = scratch / f"world-{size}.log"
        self._ranks: list[subprocess.Popen[str]] = []

    def __enter__(self) -> World:
        self._rendezvous.unlink(missing_ok=True)
        with open(self._log, "w") as log:
            for rank in range(self.size):
                command = [sys.executable, "-m", "benchmarks.distributed.rank", str(rank), str(self.size)]
                self._ranks.append(
                    subprocess.Popen(
                        [*command, str(self._rendezvous)],
                        cwd=REPOSITORY,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()

    def call(self, do: str, **values: object) -> list[Reply]:
        """Send a command to every rank; returns the reply of each."""
        line = json.dumps({"do": do, **values}) + "\n"
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(line)
            rank.stdin.flush()
        return [self._receive(rank) for rank in self._ranks]

    def _receive(self, rank: subprocess.Popen[str]) -> Reply:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank of {self.size} ended; its log ends with:\n{self._log.read_text()[-2000:]}")
        reply: Reply = json.loads(line)
        return reply


def slowest(replies: list[Reply], metric: str) -> float:
    return max(reply[metric] for reply in replies)
