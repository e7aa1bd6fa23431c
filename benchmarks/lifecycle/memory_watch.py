"""Memory watch: the resident memory of the process that serves the API, sampled while a block runs."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil  # type: ignore[import-untyped]  # has no stubs of its own

from benchmarks.live.server import LiveServer

SAMPLE_SECONDS = 0.005


class MemoryWatch:
    """``before`` and ``peak`` are in bytes, and final after the ``with`` block."""

    def __init__(self, server: LiveServer) -> None:
        self._process: psutil.Process = server.process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.before = self.peak = 0

    @property
    def grown_bytes(self) -> int:
        return self.peak - self.before

    def __enter__(self) -> MemoryWatch:
        self.before = self.peak = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, self._process.memory_info().rss)
