"""TensorBoard: a directory of event files for each run, below one log directory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from chockstone.trackers.event_file import EventFile
from chockstone.trackers.tracker import TrackedCheckpoint, TrackedPoint, TrackedRun, series_name

_MARKUP: Final = re.compile(r"[\\`*_{}\[\]<>()#+!|~]")  # TensorBoard shows texts as Markdown


class TensorBoardTracker:
    """Each process writes a new file into the directory of the run, and TensorBoard reads all of them in order."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Raises ExtraMissing."""
        self._directory = directory
        self._clock = clock
        self._files: dict[str, EventFile] = {}
        EventFile(directory, extra="tensorboard")  # raises

    def open(self, run: TrackedRun) -> None:
        if run.run_id in self._files:
            return
        directory = self._directory / run.name
        is_new = not directory.exists()
        file = EventFile(directory, extra="tensorboard", clock=self._clock)
        file.open()
        self._files[run.run_id] = file
        if is_new:
            file.add_text(0, "settings", _table(run), at=run.created_at)

    def log(self, run: TrackedRun, points: Sequence[TrackedPoint]) -> None:
        file = self._files[run.run_id]
        for point in points:
            file.add_numbers(point.step, {series_name(key): value for key, value in point.values.items()}, at=point.at)

    def saved(self, run: TrackedRun, checkpoints: Sequence[TrackedCheckpoint]) -> None:
        for each in checkpoints:
            self._files[run.run_id].add_text(each.step, f"checkpoints/{each.kind}", _plain(each.path), at=each.at)

    def close(self, run_id: str) -> None:
        if (file := self._files.pop(run_id, None)) is not None:
            file.close()

    def shut_down(self) -> None:
        for run_id in list(self._files):
            self.close(run_id)


def _table(run: TrackedRun) -> str:
    rows = [f"| {_plain(key)} | {_plain(str(value))} |" for key, value in run.settings().items()]
    return "\n".join(("| setting | value |", "|---|---|", *rows))


def _plain(text: str) -> str:
    """``text`` as Markdown that shows it as it is, on one line."""
    return _MARKUP.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))
