"""Worlds: ranks as processes of their own, given orders together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from benchmarks.distributed.rank import Said

REPOSITORY = Path(__file__).resolve().parents[2]
END_SECONDS = 30.0


class World:
    """Runs from entering to leaving."""

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

    def tell(self, do: str, **values: object) -> list[Said]:
        """Have every rank do it; what each said of it."""
        line = json.dumps({"do": do, **values}) + "\n"
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(line)
            rank.stdin.flush()
        return [self._hear(rank) for rank in self._ranks]

    def _hear(self, rank: subprocess.Popen[str]) -> Said:
        assert rank.stdout is not None
        line = rank.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank of {self.size} ended; it said:\n{self._log.read_text()[-2000:]}")
        said: Said = json.loads(line)
        return said


def slowest(said: list[Said], metric: str) -> float:
    """When the last one was done."""
    return max(each[metric] for each in said)
