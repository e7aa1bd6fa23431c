"""The TensorBoard report: the metrics of a run as event files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from chockstone.trackers.event_file import EventFile
from chockstone.trainers.reports.reports import Level, StepRecord


class TensorBoard:
    """Writes one file per process in ``directory``. Discarded steps stay in their file, and TensorBoard hides them.

    Evaluations have the prefix ``evaluation/``. Samples and events are not written.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Raises ModuleNotFoundError with the package to install, before training starts."""
        self._file = EventFile(directory, extra="train", clock=clock)

    def resume(self, step: int) -> None:
        self._file.open(first_lost_step=step + 1 if step else 0)  # a fresh start also hides an evaluation at step 0

    def record(self, record: StepRecord) -> None:
        self._file.add_numbers(record.step, record.metrics)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._file.add_numbers(step, {f"evaluation/{name}": value for name, value in metrics.items()})

    def event(self, text: str, *, level: Level = "info") -> None:
        pass

    def close(self) -> None:
        self._file.close()
