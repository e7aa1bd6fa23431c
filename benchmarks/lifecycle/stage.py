"""Stage: what every measure is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no stubs of its own

from benchmarks.checkpoints.free_memory import AsItIs
from benchmarks.checkpoints.rounds import Action, Series
from benchmarks.checkpoints.rounds import run_rounds as run_prepared_rounds
from benchmarks.lifecycle.scale import Scale
from benchmarks.server.live import LiveServer
from benchmarks.server.models import Model

SAMPLE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Stage:
    scale: Scale
    directory: Path  # on the disk of the server's store
    models: Mapping[str, Model]
    server: LiveServer
    say: Callable[[str], None]

    @property
    def data(self) -> Path:
        return self.server.data

    def run_rounds(self, actions: Mapping[str, Action], *, repeats: int) -> dict[str, Series]:
        """Everybody once per round in an order that rotates, the first round uncounted; one that raises is out."""
        return run_prepared_rounds(actions, repeats=repeats, memory=AsItIs(), say=self.say)

    @contextmanager
    def watch_memory(self) -> Iterator[MemoryWatch]:
        """The resident memory of the process that answers, while the block runs."""
        watch = MemoryWatch(self.server.process)
        watch.start()
        try:
            yield watch
        finally:
            watch.stop()


@dataclass(slots=True)
class MemoryWatch:
    process: psutil.Process
    before: int = 0
    peak: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.before = self.peak = self.process.memory_info().rss
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        assert self._thread is not None
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, self.process.memory_info().rss)

    @property
    def grown_bytes(self) -> int:
        return self.peak - self.before
